# expect: time-out
# limit: 1
# computes without end
while True:
    pass
