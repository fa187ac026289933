# expect: wrong answer
# cases: 2
# changes its input file and its length
import os
os.pwrite(0, b'ANSWER', 0)
os.ftruncate(0, 3)
os.ftruncate(1, 1 << 20)
print(5)
