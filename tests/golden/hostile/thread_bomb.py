# expect: crash|memory limit
# threads until no more can be started
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
