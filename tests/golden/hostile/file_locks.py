# expect: crash
# kernel memory in locks of ranges
import fcntl
f = open('/tmp/x', 'wb')
for i in range(10**9):
    fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * i)
