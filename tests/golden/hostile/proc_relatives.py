# expect: wrong answer
# looks for other processes
import os
print(*[p for p in os.listdir('/') if p in ('proc', 'sys', 'etc', 'home', 'root', 'var', 'run')])
