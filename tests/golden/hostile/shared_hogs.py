# expect: memory limit|crash
# memory that only counts as shared, in many processes
import mmap, os
for _ in range(3):
    os.fork()
x = mmap.mmap(-1, 400 << 20)
for i in range(0, len(x), 4096):
    x[i] = 1
while True:
    pass
