# expect: crash
# memory by way of /dev/shm
open('/dev/shm/x', 'wb').write(bytes(10**9))
