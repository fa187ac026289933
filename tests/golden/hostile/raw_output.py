# expect: output limit|time-out
# limit: 1
# writes without end, below the interpreter, and goes on when refused
import os
while True:
    try:
        os.write(1, b'x' * 65536)
    except OSError:
        pass
