# expect: crash
# removes the ground it stands on
import os
os.rmdir('/tmp')
