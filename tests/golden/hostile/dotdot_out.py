# expect: crash
# walks up out of the sandbox
print(open('/tmp/' + '../' * 50 + 'etc/passwd').read())
