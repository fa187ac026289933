# expect: wrong answer
# a set-uid copy of a shell
import os, shutil, subprocess
open('/tmp/sh', 'wb').write(open('/usr/bin/dash', 'rb').read())
os.chmod('/tmp/sh', 0o6755)
print(subprocess.run(['/tmp/sh', '-p', '-c', 'echo 5; cat /etc/shadow'], capture_output=True).stdout)
