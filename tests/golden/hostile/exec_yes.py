# expect: output limit|time-out
# becomes a program that writes without end
import os
os.execv('/usr/bin/yes', ['yes'])
