# expect: crash|memory limit|output limit|wrong answer|missing function
# ends with the driver's own statuses
import os
os._exit(80 + int(input()))
