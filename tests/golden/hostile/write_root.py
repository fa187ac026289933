# expect: crash
# writes outside /tmp
open('/x', 'w')
