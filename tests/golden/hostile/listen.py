# expect: crash
# offers a service
import socket
s = socket.socket()
s.bind(('0.0.0.0', 0))
s.listen()
print(s.getsockname())
