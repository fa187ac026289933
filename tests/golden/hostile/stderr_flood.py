# expect: output limit|crash
# floods the error output
import sys
while True:
    sys.stderr.write('x' * 65536)
    sys.stderr.flush()
