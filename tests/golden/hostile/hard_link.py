# expect: crash
# links a file of the system
import os
os.link('/usr/bin/python3', '/tmp/p')
