# expect: memory limit|time-out|crash
# twenty processes, each below its own limit
import os, time
for _ in range(20):
    if os.fork() == 0:
        x = bytearray(300 << 20)
        for i in range(0, len(x), 4096):
            x[i] = 1
        time.sleep(1000)
time.sleep(1000)
