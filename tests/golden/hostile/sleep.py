# expect: time-out
# limit: 1
# waits
import time
time.sleep(1000)
