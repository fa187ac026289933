# expect: wrong answer
# mounts
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('mounted' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else 'refused')
