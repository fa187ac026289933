# expect: time-out
# limit: 1
# ends, but not really
import atexit, time
atexit.register(time.sleep, 1000)
print(5)
