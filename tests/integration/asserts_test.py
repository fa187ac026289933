"""asserts_test.py - assertions that call a program in another process are scored as if both were one

tests/golden/asserts/shapes.txt holds what tests of code look like: for each shape a right program, mostly a wrong one, and a test. Python itself
says first, in one process, that the right one passes and the wrong one does not. hostile.txt holds programs that look for the
answers or try to decide what equals what; python may say that they pass, and here none earns anything."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(HERE, "../../build/release/rollcall")))
GOLDEN = os.path.join(HERE, "../golden/asserts")
# Runs program and test of each row in one process and prints whether that ended well.
TOGETHER = """import io, json, os, sys
sys.set_int_max_str_digits(0)
for line in sys.stdin:
    program, test = json.loads(line)
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            space = sys.modules["__main__"].__dict__
            sys.stdin, sys.stdout, sys.stderr = io.StringIO(""), io.StringIO(), io.StringIO()
            exec(program, space)
            exec(test, space)
            os.write(writes, b"1")
        except SystemExit as error:
            os.write(writes, b"1" if not error.code else b"0")
        except BaseException:
            os.write(writes, b"0")
        finally:
            os._exit(0)
    os.close(writes)
    print(os.read(reads, 1) == b"1", flush=True)
    os.close(reads)
    os.wait()
"""


def blocks(name):
    """(name, {part: text}) of each block of a file: '=== name', then lines of the part 'program' or of the one that '--- part' names."""
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as f:
        for block in f.read().split("=== ")[1:]:
            title, _, rest = block.partition("\n")
            program, *parts = rest.split("--- ")
            yield title, {"program": program, **{p.partition("\n")[0]: p.partition("\n")[2] for p in parts}}


def score(rows):
    """The answer of the verifier of code for each (program, test)."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for program, test in rows:
            f.write(json.dumps({"response": "```python\n%s\n```" % program, "dataset": "code", "ground_truth": [test]}) + "\n")
        f.flush()
        with open(f.name + ".yaml", "w") as config:
            config.write("reward_type: verify\ncode_max_execution_time: 20\n")    # for a busy machine; nothing here waits
        done = subprocess.run([ROLLCALL, "score", "-c", f.name + ".yaml", "-i", f.name], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL)
        os.unlink(f.name + ".yaml")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(rows):
        raise AssertionError(done.stderr)
    return answers


class Asserts(unittest.TestCase):
    def test_every_shape_is_scored_as_python_scores_it(self):
        shapes = list(blocks("shapes.txt"))
        self.assertGreater(len(shapes), 100)
        rows = [(shape[part], shape["test"]) for _, shape in shapes for part in ("program", "wrong") if part in shape]
        want = [part == "program" for _, shape in shapes for part in ("program", "wrong") if part in shape]
        done = subprocess.run([sys.executable, "-c", TOGETHER], input="".join(json.dumps(row) + "\n" for row in rows), text=True,
                              capture_output=True, timeout=300)
        self.assertEqual(done.stdout.split(), [str(right) for right in want], done.stderr)
        for (program, test), right, answer in zip(rows, want, score(rows)):
            with self.subTest(program + test):
                self.assertEqual(answer["reward"], 10 if right else 0, answer["rule"])

    def test_programs_that_cheat_earn_nothing(self):
        programs = list(blocks("hostile.txt"))
        self.assertGreater(len(programs), 40)
        for (name, _), answer in zip(programs, score([(p["program"], p["test"]) for _, p in programs])):
            with self.subTest(name):
                self.assertIn(answer["reward"], (0, None), answer)

    def test_what_cannot_be_told_is_left_out_with_the_reason(self):
        rows = [("def f(): return 1", "import surely_missing\nassert f() == 1", "the test imports 'surely_missing'"),
                ("def f(cls):\n  cls.__repr__ = lambda s: 'x'\n  return cls", "@f\nclass A: pass\nassert repr(A()) == 'x'", "the class 'A' of the test"),
                ("import types\ndef f(): return types.SimpleNamespace(a=1)", "import types\nassert f() == types.SimpleNamespace(a=1)", "compares objects of the class 'SimpleNamespace'"),
                ("limit = 10\ndef f(x): return min(x, limit)", "limit = 20\nassert f(50) == 20", "the test sets 'limit'"),
                ("class A:\n  def __init__(s, v): s.v = v\n  def __lt__(s, o): return s.v < o\ndef f(): return A(1)", "assert f() < 2",
                 "compares or computes with an object of the class 'A'")]
        for (_, _, reason), answer in zip(rows, score([row[:2] for row in rows])):
            self.assertIsNone(answer["reward"])
            self.assertIn(reason, answer["rule"])


if __name__ == "__main__":
    unittest.main()
