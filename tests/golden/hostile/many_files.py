# expect: output limit|crash|time-out
# files without content, each costs the kernel memory
i = 0
while True:
    open('/tmp/%d' % i, 'w').close()
    i += 1
