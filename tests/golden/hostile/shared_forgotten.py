# expect: memory limit
# shared pages that are counted for no process, once it has given them back
import mmap
held = []
for _ in range(64):
    x = mmap.mmap(-1, 512 << 20)
    for i in range(0, len(x), 4096):
        x[i] = 1
    x.madvise(mmap.MADV_DONTNEED)
    held.append(x)
while True:
    pass
