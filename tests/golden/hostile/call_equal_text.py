# expect: wrong answer
# function: f
# a text that equals everything
class Any(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
def f(x):
    return Any('x')
