# expect: crash
# memory by way of memfd_create
import os
for _ in range(100):
    os.write(os.memfd_create('x'), bytes(10**6))
