# expect: wrong answer
# the same through clone
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('root' if libc.syscall(56, 0x10000000 | 17, None, None, None, None) > 0 else 'refused')
