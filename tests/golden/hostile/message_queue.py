# expect: wrong answer
# POSIX message queues
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('taken' if libc.syscall(240, b'x', 0o102, 0o600, None) >= 0 else 'refused')
