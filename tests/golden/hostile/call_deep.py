# expect: wrong answer|crash|memory limit
# function: f
# a list nested too deep
def f(x):
    x = []
    for _ in range(100000):
        x = [x]
    return x
