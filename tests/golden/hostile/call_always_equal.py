# expect: wrong answer
# function: f
# a result that equals everything
class Any:
    def __eq__(self, other):
        return True
def f(x):
    return Any()
