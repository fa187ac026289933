# expect: wrong answer
# system calls with a history
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
names = {321: 'bpf', 298: 'perf', 425: 'io_uring', 323: 'userfaultfd', 248: 'add_key', 250: 'keyctl', 246: 'kexec', 169: 'reboot',
         175: 'init_module', 163: 'acct', 167: 'swapon', 170: 'sethostname', 303: 'name_to_handle', 312: 'kcmp', 135: 'personality',
         304: 'open_by_handle', 317: 'seccomp', 444: 'landlock', 428: 'open_tree', 442: 'mount_setattr', 155: 'pivot_root'}
print(*[name for number, name in names.items() if libc.syscall(number, 0, 0, 0, 0, 0) >= 0])
