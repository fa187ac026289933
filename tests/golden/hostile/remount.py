# expect: wrong answer
# makes /usr writable
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('writable' if libc.mount(None, b'/usr', None, 32 | 4096, None) == 0 else 'refused')
