# expect: crash
# types into the terminal
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSTI, b'x')
