# expect: wrong answer
# function: f
# a result without end
def f(x):
    while True:
        yield x
