# expect: wrong answer
# looks for the answer among all objects of the interpreter
import gc
mark = 'ANS' + 'WER-'
found = []
for thing in gc.get_objects():
    for part in (thing, *(thing.values() if type(thing) is dict else thing if type(thing) in (list, tuple) else ())):
        if (type(part) is str and mark in part) or (type(part) is bytes and mark.encode() in part):
            found.append(part[:80])
print([f for f in found if 'gc.get' not in str(f)])
