# expect: time-out
# limit: 1
# a pattern that takes for ever
import re
re.match(r'(a+)+$', 'a' * 64 + 'b')
