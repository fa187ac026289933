# expect: crash
# leaks by way of the name service
import socket
print(socket.gethostbyname('secret.example.com'))
