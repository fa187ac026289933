# expect: output limit|memory limit
# function: f
# a result larger than allowed
def f(x):
    return ['x' * 1000] * 100000
