#!/usr/bin/python3
"""Makes a small code-generation task: descriptions of programs in words, with tests. Deterministic.

    examples/programs.py OUT_DIR

writes into OUT_DIR
  train.jsonl, eval.jsonl    problems with their tests, in the form of rollcall train (messages, test_cases)
  sft_clean.jsonl            right programs, for the first supervised stage
  sft_styles.jsonl           the same in mixed habits (35 % right, 25 % right but without the code fence,
                             40 % with a slip in it): a model that can do it but mostly does not
  sft_eval.jsonl             right programs of the evaluation's problems, to measure the first stage
  tokenizer/                 a byte-level BPE tokenizer with Qwen's chat markers

A problem belongs to training or to evaluation by a hash of its words, so the two share none.
"""
import hashlib
import os
import random
import sys

from arithmetic import tokenizer, write

N_TRAIN, N_EVAL, N_CLEAN, N_STYLES, N_TEST = 4000, 200, 40000, 6000, 3
WORDS = ("user", "assistant", "Read", "print", "python", "```", "if", "else", "for", "in", "Print", " and", " print",
         " plus", " minus", " times", " the", " larger", " smaller", " of", " from", " to", " sum", " all", " numbers",
         " if", " is", " than", " else", " down", " int", "(input", "(sum", "(max", "(min", "(range", "())\n", " =",
         " +", " -", " *", " >", " in", " range", " twice", "    ", "()", ":\n", "))\n")
OPS = (("plus", "+"), ("minus", "-"), ("times", "*"))


def value(r, names):
    """A side of an expression: words, python, python with a slip."""
    name = r.choice(names)
    if r.random() < 0.3:
        n = r.randint(2, 20)
        return str(n), str(n), str(n + r.choice((-1, 1)))
    return name, name, r.choice([x for x in names if x != name] or [name + " + 1"])


def expression(r, names):
    """An expression of two or three sides in words, as python, and as python with a slip in its first two sides."""
    words, code, slip = value(r, names)
    wrong_at = r.randrange(3)    # left side, operator, right side
    if wrong_at != 0:
        slip = code
    for i in range(r.choice((1, 2))):
        (word, op), side = r.choice(OPS), value(r, names)
        words += f" {word} {side[0]}"
        code += f" {op} {side[1]}"
        bad = r.choice([o for _, o in OPS if o != op])
        slip += f" {bad if i == 0 and wrong_at == 1 else op} {side[2] if i == 0 and wrong_at == 2 else side[1]}"
    return words, code, slip


def problem(r):
    """What to do, the program's last lines, the same with a slip, names read."""
    names = ("a", "b", "c")[:r.choice((2, 2, 3))]
    kind = r.choice(("expression", "expression", "expression", "choice", "if", "range", "sum"))
    x, y = r.sample(names, 2)
    if kind == "expression":
        words, code, slip = expression(r, names)
        return f"Print {words}.", f"print({code})\n", f"print({slip})\n", names
    if kind == "choice":
        word, call = r.choice((("larger", "max"), ("smaller", "min")))
        n = r.randint(2, 20)
        bad = "min" if call == "max" else "max"
        text = "print({}({}, {}) + {})\n"
        return (f"Print the {word} of {x} and {y} plus {n}.", text.format(call, x, y, n), text.format(bad, x, y, n),
                names)
    if kind == "if":
        one, other = r.randint(1, 50), r.randint(51, 99)
        text = "if {} > {}:\n    print({})\nelse:\n    print({})\n"
        return (f"Print {one} if {x} is larger than {y} else {other}.", text.format(x, y, one, other),
                text.format(y, x, one, other), names)
    if kind == "range":
        text = "for i in range({}, {}):\n    print(i)\n"
        return (f"Print all numbers from {x} to {x} plus 3.", text.format(x, f"{x} + 4"), text.format(x, f"{x} + 3"),
                names)
    text = "print(sum(range({}, {})))\n"
    n = r.randint(5, 30)
    return (f"Print the sum of all numbers from 1 to {n} plus {x}.", text.format(1, f"{n} + {x} + 1"),
            text.format(1, f"{n} + {x}"), names)


def whole(names, lines):
    return "".join(f"{name} = int(input())\n" for name in names) + lines


def run(code, numbers):
    """The output of a right program, which is one of ours."""
    out, left = [], list(numbers)
    exec(code, {"input": lambda: left.pop(0), "print": lambda x: out.append(str(x)), "__builtins__": {
        "int": int, "max": max, "min": min, "sum": sum, "range": range}})
    return "\n".join(out) + "\n"


def draw(r, want_eval):
    """A random problem of the wanted side: its words, the right program, one with a slip, names."""
    while True:
        words, lines, slip, names = problem(r)
        text = f"Read {' and '.join(names)}. {words}"
        if (hashlib.sha256(text.encode()).digest()[0] < 26) == want_eval:
            return text, whole(names, lines), whole(names, slip), names


def distinct(r, n, want_eval):
    seen, out = set(), []
    while len(out) < n:
        p = draw(r, want_eval)
        if p[0] not in seen:
            seen.add(p[0])
            out.append(p)
    return out


def asked(r, p):
    inputs = [[r.randint(1, 40) for _ in p[3]] for _ in range(N_TEST)]
    return {"messages": [{"role": "user", "content": p[0]}],
            "test_cases": {"inputs": ["".join(f"{n}\n" for n in numbers) for numbers in inputs],
                           "outputs": [run(p[1], numbers) for numbers in inputs]}}


def answered(p, text):
    return {"messages": [{"role": "user", "content": p[0]}, {"role": "assistant", "content": text}]}


def fenced(code):
    return f"```python\n{code}```"


def styled(r, p):
    u = r.random()
    return fenced(p[1]) if u < 0.35 else p[1] if u < 0.60 else fenced(p[2])


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: examples/programs.py OUT_DIR")
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    r = random.Random(20240602)
    evals = distinct(r, N_EVAL, True)
    write(os.path.join(out, "eval.jsonl"), (asked(r, p) for p in evals))
    write(os.path.join(out, "sft_eval.jsonl"), (answered(p, fenced(p[1])) for p in evals))
    write(os.path.join(out, "train.jsonl"), (asked(r, p) for p in distinct(r, N_TRAIN, False)))
    clean = (draw(r, False) for _ in range(N_CLEAN))
    write(os.path.join(out, "sft_clean.jsonl"), (answered(p, fenced(p[1])) for p in clean))
    styles = (draw(r, False) for _ in range(N_STYLES))
    write(os.path.join(out, "sft_styles.jsonl"), (answered(p, styled(r, p)) for p in styles))
    tokenizer(os.path.join(out, "tokenizer"), WORDS)


if __name__ == "__main__":
    main()
