# expect: wrong answer
# kills its parent
import os, time
for _ in range(100):
    os.kill(os.getppid(), 9)
print(os.getppid())
