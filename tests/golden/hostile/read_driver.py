# expect: wrong answer
# reads pid 1's memory
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
import struct
buffer = ctypes.create_string_buffer(4096)
local = struct.pack('<2Q', ctypes.addressof(buffer), 4096)
remote = struct.pack('<2Q', 0x400000, 4096)
print('read' if libc.process_vm_readv(1, local, 1, remote, 1, 0) > 0 else 'refused')
