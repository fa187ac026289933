# expect: wrong answer|crash
# function: f
# a list that holds itself
def f(x):
    x = []
    x.append(x)
    return x
