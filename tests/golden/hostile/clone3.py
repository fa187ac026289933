# expect: wrong answer
# the same through clone3, whose flags no filter sees
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
import struct
args = struct.pack('<8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)
print('root' if libc.syscall(435, args, len(args)) > 0 else 'refused')
