# expect: crash
# kernel memory in pipes
import os
held = []
while True:
    held.append(os.pipe())
    os.set_blocking(held[-1][1], False)
    os.write(held[-1][1], bytes(65536))
