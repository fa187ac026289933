# expect: time-out|memory limit|crash
# limit: 1
# a number with too many digits
print(10 ** 10 ** 9)
