# expect: wrong answer|crash
# replaces what the driver would call to end it
import posix, os, sys, builtins
posix._exit = os._exit = lambda status: None
sys.exit = lambda status=0: None
builtins.exec = builtins.compile = None
print(5)
