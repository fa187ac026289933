# expect: memory limit
# one huge allocation
x = [0] * 10**10
