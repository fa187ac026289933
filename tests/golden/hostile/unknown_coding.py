# coding: no-such-coding
# expect: compile error
# a coding that does not exist
print(5)
