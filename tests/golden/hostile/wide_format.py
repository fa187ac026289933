# expect: memory limit
# a field wider than memory
print('{:1000000000000}'.format(1))
