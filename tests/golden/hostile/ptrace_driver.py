# expect: wrong answer
# traces pid 1
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('traced' if libc.ptrace(16, 1, None, None) == 0 else 'refused')
