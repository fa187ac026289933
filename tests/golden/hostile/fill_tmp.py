# expect: crash
# fills /tmp
i = 0
while True:
    with open('/tmp/%d' % i, 'wb') as f:
        f.write(bytes(10**6))
    i += 1
