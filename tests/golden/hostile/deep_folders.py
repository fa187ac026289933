# expect: output limit|crash|time-out
# folders in folders without end
import os
while True:
    os.mkdir('d')
    os.chdir('d')
