# expect: crash|memory limit
# recursion in the interpreter's own code
x = []
for _ in range(10**6):
    x = [x]
repr(x)
