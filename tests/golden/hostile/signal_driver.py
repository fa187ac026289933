# expect: wrong answer
# sends every signal to pid 1
import os
for number in range(1, 65):
    os.kill(1, number)
print(5)
