# expect: crash
# kills its process group
import os
os.killpg(0, 9)
