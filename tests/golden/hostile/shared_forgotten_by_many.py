# expect: memory limit
# the same by many processes, none of which maps much
import mmap, os, sys, time
x = mmap.mmap(-1, 256 << 20)
for _ in range(20):
    if os.fork() == 0:
        x = mmap.mmap(-1, 256 << 20)
        for i in range(0, len(x), 4096):
            x[i] = 1
        x.madvise(mmap.MADV_DONTNEED)
        time.sleep(1000)
time.sleep(1000)
