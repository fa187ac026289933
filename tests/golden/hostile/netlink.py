# expect: crash
# asks the kernel about interfaces
import socket
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
