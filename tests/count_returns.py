#!/usr/bin/env python3
"""Count how often a reader of a train step returns to a file that they have left: the walk from ranks_step to the loss.

    tests/count_returns.py            # stays, files, and the returns
    tests/count_returns.py --walk     # each stay, too: the file, and the functions that are read in it

The reader begins at ranks_step and reads each function of workers/engine/trainer when it is first called or passed on, before the code that
follows. A stay is a stretch of functions in one file. What is more than one stay for each file is a return. The sum is to be at most 15.
Functions of three lines or fewer are not visited: their name says what they do.
"""
import argparse
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = "workers/engine/trainer"
START = "ranks_step"
SHORT = 3    # lines of a body that nobody has to go to
FUNCTION = re.compile(r"^(?:static )?(?:const )?[a-z_][\w ]*?[ *]+(\w+)\([^;{}]*?\)\n\{\n(.*?)^\}", re.S | re.M)


def functions():
    """{name: (file, body, names in its order)} of the folder. A static function of another file is not seen."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, FOLDER, "*.c"))):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", "", f.read(), flags=re.S)
        for m in FUNCTION.finditer(text):
            static = text[m.start():m.end()].startswith("static")
            found[(os.path.basename(path) if static else "", m.group(1))] = (os.path.basename(path), m.group(2))
    return found


def walk(all_functions):
    """[(file, name)] in the order of reading."""
    read, order = set(), []

    def visit(file, name):
        key = (file, name) if (file, name) in all_functions else ("", name)
        if key not in all_functions or key in read:
            return
        read.add(key)
        own, body = all_functions[key]
        if body.count("\n") > SHORT:
            order.append((own, name))
        for called in re.findall(r"\b[a-z_]\w*\b", body):
            visit(own, called)

    visit("", START)
    return order


def stays_of(order):
    """[(file, [names])]: neighbours in one file are one stay."""
    stays = []
    for file, name in order:
        if not stays or stays[-1][0] != file:
            stays.append((file, []))
        stays[-1][1].append(name)
    return stays


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--walk", action="store_true", help="print each stay, too")
    args = parser.parse_args()
    stays = stays_of(walk(functions()))
    for file, names in stays if args.walk else ():
        print(f"{file}: {', '.join(names)}")
    n_file = len({file for file, _ in stays})
    print(f"{len(stays)} stays in {n_file} files: {len(stays) - n_file} returns")


if __name__ == "__main__":
    main()
