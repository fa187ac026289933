# expect: crash
# looks for services on Unix sockets
import socket
socket.socket(socket.AF_UNIX).connect('\0/tmp/.X11-unix/X0')
