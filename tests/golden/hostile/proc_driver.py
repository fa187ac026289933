# expect: crash
# writes pid 1's memory through /proc
open('/proc/1/mem', 'r+b').write(b'x')
