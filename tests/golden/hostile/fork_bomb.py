# expect: crash|time-out|memory limit
# multiplies until no process is left
import os
while True:
    os.fork()
