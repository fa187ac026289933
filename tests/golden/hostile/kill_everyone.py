# expect: wrong answer|crash
# kills every process it can see
import os
os.kill(-1, 9)
print(5)
