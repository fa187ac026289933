# expect: crash|memory limit|time-out
# limit: 1
# recursion without end
import sys
sys.setrecursionlimit(2**31 - 1)
def f(n):
    return f(n + 1) + 1
f(0)
