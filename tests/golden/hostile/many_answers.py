# expect: wrong answer
# prints every answer it can think of
for i in range(100000):
    print(i)
