# expect: wrong answer
# ends with a good status and no answer
import os
os._exit(0)
