# expect: crash
# ends with a bad status
import os
os._exit(1)
