# expect: wrong answer
# leaves a process that replaces itself by a child all the time
import os
if os.fork() == 0:
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
print(5)
