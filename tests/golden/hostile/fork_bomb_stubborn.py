# expect: time-out|memory limit
# limit: 1
# multiplies, and goes on when refused
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
