# expect: wrong answer
# looks for the answer in its surroundings
import os, sys
print(sorted(os.environ), sys.argv, sys.path[:1])
