# expect: memory limit
# memory in the buffers of sockets, beside what the processes hold
import os, socket, time
kept = bytearray(500 << 20)
for i in range(0, len(kept), 4096):
    kept[i] = 1
for _ in range(25):
    if os.fork() == 0:
        held = []
        try:
            while True:
                held.append(socket.socketpair())
                for s in held[-1]:
                    s.setblocking(False)
                    while True:
                        try:
                            s.send(bytes(65536))
                        except BlockingIOError:
                            break
        except OSError:
            pass
        time.sleep(1000)
time.sleep(1000)
