# expect: wrong answer
# new namespaces, to be root there
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('root' if libc.unshare(0x10000000) == 0 else 'refused')
