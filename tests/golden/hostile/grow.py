# expect: memory limit
# grows piece by piece
x = []
while True:
    x.append(bytearray(10**6))
