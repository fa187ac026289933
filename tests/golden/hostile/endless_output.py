# expect: output limit|time-out
# prints without end
while True:
    print('x' * 1000)
