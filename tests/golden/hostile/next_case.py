# expect: wrong answer
# cases: 2
# leaves a process and files for the next case
import os, time
print(os.listdir('/tmp'))
open('/tmp/left', 'w').close()
if os.fork() == 0:
    time.sleep(1000)
