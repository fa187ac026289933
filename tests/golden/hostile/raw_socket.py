# expect: crash
# a raw socket
import socket
socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
