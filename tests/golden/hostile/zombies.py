# expect: wrong answer|crash
# children that nobody collects
import os
for _ in range(1000):
    if os.fork() == 0:
        os._exit(0)
print(5)
