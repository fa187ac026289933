# expect: missing function
# function: f
# the function is none
f = 5
