# expect: time-out
# limit: 1
# becomes a program that only waits
import os
os.execv('/usr/bin/sleep', ['sleep', '1000'])
