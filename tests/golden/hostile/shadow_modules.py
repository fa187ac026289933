# expect: wrong answer
# cases: 2
# leaves modules for the driver or the next case to import
for name in ('json', 'collections', 'threading', 'atexit', 'resource'):
    open('/tmp/%s.py' % name, 'w').write('print("ANSWER")')
print(List, 5)
