# expect: output limit|crash
# a file that is only said to be large
import os
open('/tmp/x', 'w').close()
os.truncate('/tmp/x', 1 << 40)
