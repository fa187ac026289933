# expect: wrong answer
# uncovers what lies below
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('gone' if libc.umount2(b'/tmp', 2) == 0 else 'refused')
