# expect: crash
# changes the standard library
import os
open(os.__file__, 'a').write('#')
