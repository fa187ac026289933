# expect: crash
# opens the terminal
open('/dev/tty')
