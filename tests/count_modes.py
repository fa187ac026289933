#!/usr/bin/env python3
"""Count the mode tests: lines of code that ask in which form weights, a pass or a trainer's state lie.

    tests/count_modes.py            # per file, and the sum
    tests/count_modes.py --lines    # each line, too

A form should be a table of functions in a file of its own. Each line that this script counts is a place where one function serves several
forms by a condition, and where the next form has to be added by hand. The sum is to fall below 60. A line counts once for each name.

A number of slices or stages is a mode test where it says whether there are any: it is taken as true or false, or compared with 0 or 1. Where
it bounds an index, an argument or a loop (`q < n_stage`, `n * n_slice > TEAM_MAX`) the line does the same for every form. So do the first and
the last layer of a part (own.first, own.end), which every model has; whether a part has the embedding or the head is a mode test. A pointer
or a flag counts where it is tested or compared itself, and not where it is passed on or followed (`if (!trainer_new(e->trained, e->ref))`).
"""
import argparse
import collections
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("workers/engine/model", "workers/engine/pass", "workers/engine/trainer", "workers/engine/publish", "workers/engine/sampler",
           "workers/engine/plan", "workers/worker", "workers/serve")
# The names by which a form is asked for: a pointer or a number of struct run, struct model or struct trainer that only some forms have, or a
# question.
NAMES = {
    "pass": ("r->team", "r->peers", "r->stages"),
    "weights": ("m->team", "m->lora", "m->kept", "m->source", "m->base", "own.head", "own.embed", "is_sliced(", "is_staged(",
                "grads->frozen"),
    "sizes": ("n_slice", "n_stage"),
    "trainer": ("keep->shards", "is_apart("),
    "worker": ("e->sampler", "e->ref", "e->trained", "model_is_whole(", "model_keeps_shards(", "trainer_keeps_shards(", "needs_whole(",
               "holdings_has(", "has_adapter(", "shards_are_reached("),
    "holdings": ("HELD_",),
}


def asks(name):
    """A pattern that finds where code asks by a name: a question wherever it stands beside a condition, a pointer or a number where it is tested."""
    if name.endswith("("):
        return re.escape(name)
    if name == "HELD_":    # a row's form is compared
        return r"[!=]= HELD_"
    if name in ("n_slice", "n_stage"):    # whether there are any
        whole = rf"[\w>.-]*\b{name}"
        return rf"\b{name} (?:[!=]=|>=?|<=) [01]\b|!{whole}\b|(?:\(|&& |\|\| |(?<![<>=!])= |return ){whole}(?: \?| &&| \|\||\)$)"
    whole = rf"(?<![\w>])[\w>.-]*{re.escape(name)}\b"
    return rf"!{whole}(?!->)|{whole} (?:\?|&&|\|\||[!=]=)|(?:\bif \(|\bwhile \(|&& |\|\| ){whole}(?:\)|;|$)"


CONDITION = re.compile(r"\bif \(|\bwhile \(| \? |&&|\|\|")


def code_of(text):
    """The text without comments and strings; the lines keep their numbers."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)


def tests_of(path):
    """[(line number, kind, the line)] of a file."""
    with open(path, encoding="utf-8") as f:
        lines = code_of(f.read()).split("\n")
    return [(at, kind, line.strip()) for at, line in enumerate(lines, 1) if CONDITION.search(line)
            for kind, names in NAMES.items() for name in names if re.search(asks(name), line)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", action="store_true", help="print each line that counts")
    args = parser.parse_args()
    total, rows = collections.Counter(), []
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.[ch]"))):
            found = tests_of(path)
            kinds = collections.Counter(kind for _, kind, _ in found)
            total += kinds
            if found:
                rows.append((len(found), os.path.relpath(path, ROOT), kinds, found))
    print("".join(f"{kind:>9}" for kind in ("sum", *NAMES)) + "  file")
    for n, path, kinds, found in sorted(rows, key=lambda row: (-row[0], row[1])):
        print("".join(f"{k or '':>9}" for k in (n, *(kinds[kind] for kind in NAMES))) + f"  {path}")
        for at, kind, line in found if args.lines else ():
            print(f"{'':>11}{at}: {kind}: {line}")
    print("".join(f"{k:>9}" for k in (sum(total.values()), *(total[kind] for kind in NAMES))) + f"  {len(rows)} files")


if __name__ == "__main__":
    main()
