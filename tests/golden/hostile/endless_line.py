# expect: output limit|time-out
# one line without end
import sys
while True:
    sys.stdout.buffer.write(b'x' * 65536)
