# expect: time-out
# limit: 2
# floods the error output, which goes nowhere
import sys
while True:
    sys.stderr.write('x' * 65536)
    sys.stderr.flush()
