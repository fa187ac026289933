# expect: time-out
# limit: 1
# leaves a thread that never ends
import threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print(5)
