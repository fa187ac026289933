# expect: wrong answer
# starts a shell that leaves a job behind
import subprocess
subprocess.run(['/bin/sh', '-c', 'sleep 1000 & echo 5'])
