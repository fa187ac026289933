# expect: wrong answer
# writes a verdict to all descriptors it was left
import os
for fd in range(2, 256):
    try:
        os.write(fd, b'exit 0')
    except OSError:
        pass
print('exit 0')
