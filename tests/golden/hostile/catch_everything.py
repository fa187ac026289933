# expect: time-out
# limit: 1
# catches all exceptions and goes on
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
