# expect: wrong answer
# function: f
# replaces what writes the result
import sys
class Fake:
    def __getattr__(self, name):
        return lambda *a, **k: (lambda *b: ['"ANSWER"'])
sys.modules['_json'] = Fake()
def f(x):
    return x
