# expect: crash
# follows a link out of the sandbox
import os
os.symlink('/etc/passwd', '/tmp/p')
print(open('/tmp/p').read())
