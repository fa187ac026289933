# expect: crash
# renames the machine
import socket
socket.sethostname('x')
