# expect: wrong answer|output limit
# leaves a process that goes on writing to the output
import os
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b'x')
print(5)
