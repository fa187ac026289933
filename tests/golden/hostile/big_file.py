# expect: output limit|crash
# a large file
with open('/tmp/x', 'wb') as f:
    while True:
        f.write(bytes(1 << 20))
