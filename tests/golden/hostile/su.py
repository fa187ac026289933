# expect: wrong answer|crash
# uses the system's set-uid programs
import subprocess
print(subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True))
