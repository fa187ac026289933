# expect: crash
# makes a device
import os, stat
os.mknod('/tmp/sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0))
