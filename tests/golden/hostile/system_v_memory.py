# expect: wrong answer
# System V shared memory, which outlives processes
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('taken' if libc.shmget(1234, 1 << 30, 0o1600) >= 0 else 'refused')
