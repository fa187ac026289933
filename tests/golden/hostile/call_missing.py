# expect: missing function
# function: f
# the function is not there
def g(x):
    return x
