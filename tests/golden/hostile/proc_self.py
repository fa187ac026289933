# expect: crash
# reads /proc
print(open('/proc/self/maps').read())
