# expect: memory limit|crash
# maps anonymous memory
import mmap
x = mmap.mmap(-1, 1 << 34)
