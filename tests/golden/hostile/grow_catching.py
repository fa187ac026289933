# expect: memory limit|time-out
# limit: 1
# grows, and goes on when refused
x = []
while True:
    try:
        x.append(bytearray(10**6))
    except MemoryError:
        pass
