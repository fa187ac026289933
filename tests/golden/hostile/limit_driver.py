# expect: crash
# takes pid 1's processor time away
import resource
resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))
