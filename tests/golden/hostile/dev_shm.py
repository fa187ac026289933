# expect: output limit|crash
# memory by way of /dev/shm, which is the small /tmp
open('/dev/shm/x', 'wb').write(bytes(10**9))
