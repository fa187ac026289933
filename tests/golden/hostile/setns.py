# expect: wrong answer
# enters another namespace
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
import os
print('in' if libc.setns(os.open('/dev/null', 0), 0) == 0 else 'refused')
