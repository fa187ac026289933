# expect: wrong answer
# looks for the answer in all files it may have
import os
found = []
for top in ('/tmp', '/dev', '/'):
    for name in os.listdir(top):
        try:
            text = open(os.path.join(top, name), 'rb').read(4096) if name != 'urandom' else b''
            found += [text] if b'ANS' + b'WER-' in text else []
        except OSError:
            pass
print(found)
