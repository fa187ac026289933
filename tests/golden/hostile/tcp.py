# expect: crash
# connects to the network
import socket
socket.create_connection(('127.0.0.1', 22), 5)
