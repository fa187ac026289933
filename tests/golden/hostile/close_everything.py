# expect: crash|wrong answer
# closes all descriptors
import os
os.closerange(0, 256)
print(5)
