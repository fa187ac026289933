# expect: wrong answer
# reads all descriptors it was left
import os
for fd in range(256):
    try:
        data = os.pread(fd, 1 << 20, 0)
        if b'ANS' + b'WER-' in data:
            print(data)
    except OSError:
        pass
print(5)
