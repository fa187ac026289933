# expect: wrong answer
# looks for the answer in the callers' variables
import sys
frame, found = sys._getframe(), []
while frame:
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        if 'ANS' + 'WER-' in str(value)[:10000]:
            found.append(name)
    frame = frame.f_back
print(found)
