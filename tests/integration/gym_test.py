"""examples/gym/gym.py: tasks, rows, scores and episodes, with a library of reasoning-gym's form that makes sums.

The real library comes from PyPI, which no test may need; its names and what they return are those of release 0.1.25.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GYM = os.path.join(ROOT, "examples", "gym", "gym.py")
FACTORY = '''
import dataclasses, random, time

@dataclasses.dataclass
class SumConfig:
    terms: int = 2
    largest: int = 9
    slow: bool = False
    seed: int = 0
    size: int = 500

class Sums:
    def __init__(self, config):
        assert config.terms > 0, "terms must be positive"
        self.config = config

    def __getitem__(self, i):
        if self.config.slow:
            time.sleep(60)
        draw = random.Random(self.config.seed + i)
        numbers = [draw.randint(1, self.config.largest) for _ in range(self.config.terms)]
        return {"question": " + ".join(map(str, numbers)) + " = ?", "answer": str(sum(numbers)), "metadata": {}}

    def score_answer(self, answer, entry):
        return 1.0 if int(answer) == int(entry["answer"]) else 0.25

class SumCurriculum:
    def set_global_level(self, level):
        self.level = level

    def generate_configuration(self, given):
        return SumConfig(**{"terms": 2 + self.level, **given})

DATASETS = {"sums": (Sums, SumConfig), "plain": (Sums, SumConfig)}
CURRICULA = {"sums": SumCurriculum}
'''
INIT = '''
from reasoning_gym.factory import DATASETS

def create_dataset(name, **config):
    made, form = DATASETS[name]
    return made(form(**config))
'''


class Gym(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        for path, text in (("reasoning_gym/__init__.py", INIT), ("reasoning_gym/factory.py", FACTORY),
                           ("reasoning_gym-0.1.25.dist-info/METADATA", "Metadata-Version: 2.1\nName: reasoning-gym\nVersion: 0.1.25\n")):
            os.makedirs(os.path.dirname(os.path.join(cls.tmp.name, path)), exist_ok=True)
            with open(os.path.join(cls.tmp.name, path), "w") as f:
                f.write(text)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def gym(self, *args, asks=(), code=0):
        """Standard output's lines as JSON; of a refusal, its sentence."""
        p = subprocess.run([sys.executable, GYM, *args], input="".join(json.dumps(a) + "\n" for a in asks), capture_output=True, text=True,
                           timeout=120, env={**os.environ, "PYTHONPATH": self.tmp.name})
        self.assertEqual(p.returncode, code, p.stderr)
        return p.stderr.strip() if code else [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]

    def rows(self, *args):
        path = os.path.join(self.tmp.name, "rows.jsonl")
        self.gym("rows", path, *args)
        with open(path) as f:
            return [json.loads(line) for line in f]

    def test_rows_are_scored_by_the_library_s_own_scorer(self):
        rows = self.rows("sums{terms:3}", "reasoning_gym:plain", "--n", "4", "--seed", "7")
        self.assertEqual(rows, self.rows("sums{terms:3}", "reasoning_gym:plain", "--n", "4", "--seed", "7"))
        self.assertEqual(sorted(r["messages"][0]["content"].count("+") for r in rows), [1] * 4 + [2] * 4)
        row = rows[0]
        answers = (f"so <answer> {row['gt_answer']} </answer>", f"it is \\boxed{{{row['gt_answer']}}}", f"<think>7</think>{row['gt_answer']}",
                   "<answer>-1</answer>", "no number")    # the scorer raises at the last
        scored = self.gym("score", asks=[{"id": i, "row": row, "response": a} for i, a in enumerate(answers)])
        self.assertEqual([(s["id"], s["reward"], s["ans_acc"]) for s in scored], [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 0.25, 0), (4, 0, 0)])

    def test_blank_rows_are_for_an_environment_that_makes_its_tasks(self):
        path = os.path.join(self.tmp.name, "blank.jsonl")
        self.gym("blank", path, "3")
        with open(path) as f:
            self.assertEqual([json.loads(line)["messages"][0]["content"] for line in f], ["task 0", "task 1", "task 2"])

    def test_a_row_of_something_else_is_left_out_and_the_next_is_scored(self):
        row = self.rows("sums", "--n", "1")[0]
        other = {**row, "messages": [{"role": "user", "content": "1 + 1 = ?"}], "gym": {"task": "sums", "seed": 5}}
        said = self.gym("score", asks=[{"id": 1, "row": {}, "response": "2"}, {"id": 2, "row": other, "response": "2"},
                                       {"id": 3, "row": row, "response": row["gt_answer"]}])
        self.assertIn("none of 'gym.py rows'", said[0]["error"])
        self.assertIn("not what reasoning-gym 0.1.25 makes of 'sums'", said[1]["error"])
        self.assertEqual(said[2]["reward"], 1)

    def test_an_episode_is_a_task_of_the_run_s_level(self):
        def ask(level, seed):
            return {"id": seed, "op": "reset", "episode": seed, "seed": seed, "row": {"messages": [], "level": level}}
        for task, terms in (("sums", [2, 4, 6]), ("plain{terms:3..5}", [3, 5, 5]), ("plain{terms:2|9}", [2, 9, 9])):
            said = self.gym("play", task, asks=[ask(level, seed) for seed, level in enumerate((0, 2, 4))])
            self.assertEqual([s["messages"][0]["content"].count("+") + 1 for s in said], terms, task)
        numbers = said[0]["messages"][0]["content"].removesuffix(" = ?").split(" + ")
        said = self.gym("play", "plain{terms:2|9}", asks=[ask(0, 0), {"id": 9, "op": "step", "episode": 0, "content": str(sum(map(int, numbers)))}])
        self.assertEqual((said[1]["reward"], said[1]["ans_acc"], said[1]["done"]), (1, 1, True))
        said = self.gym("play", "plain", asks=[ask(1, 1)])
        self.assertIn("no curriculum for 'plain'", said[0]["error"])

    def test_a_task_that_cannot_be_is_one_sentence(self):
        for task, want in (("sum", "did you mean sums?"), ("sums{term:2}", "is no setting of 'sums'"), ("sums{terms:2,terms:3}", "given twice"),
                           ("sums{terms:two}", "must be of the kind of 2"), ("sums{terms:0..500}", "more than 100 levels"), ("sums{", "is no task"),
                           ("sums{terms:0}", "fails: terms must be positive"), ("sums{slow:true}", "takes more than 5 s")):
            said = self.gym("rows", os.path.join(self.tmp.name, "none"), task, "--n", "1", code=1)
            self.assertTrue(said.startswith("gym.py: ") and "\n" not in said, said)
            self.assertIn(want, said)
        self.assertIn("ask for 1 to", self.gym("rows", os.path.join(self.tmp.name, "none"), "sums", "--n", "0", code=1))


if __name__ == "__main__":
    unittest.main()
