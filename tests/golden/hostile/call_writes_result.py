# expect: wrong answer
# function: f
# writes results of its own to the result's descriptor
import os
def f(x):
    os.write(5, b'[true, 5, "ANSWER"]')
    os._exit(0)
