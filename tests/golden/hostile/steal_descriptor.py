# expect: wrong answer
# takes a descriptor of pid 1
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
pid = libc.syscall(434, 1, 0)
print('stolen' if pid >= 0 and libc.syscall(438, pid, 3, 0) >= 0 else 'refused')
