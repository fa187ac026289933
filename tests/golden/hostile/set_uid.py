# expect: crash
# becomes root
import os
os.setuid(0)
