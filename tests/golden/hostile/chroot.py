# expect: crash
# changes the root
import os
os.chroot('/tmp')
