# expect: crash|compile error|memory limit|time-out
# limit: 1
# constants that the compiler would have to work out
x = ((1 << 10000) ** 100) ** 1000
y = 'x' * (1 << 60)
