# expect: time-out
# limit: 1
# stops itself and waits for ever
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
