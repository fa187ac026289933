"""rollcall eval: exact counts, the files it leaves, and what it refuses.

tags: asan
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model

ROLLCALL = os.environ.get("ROLLCALL", "build/release/rollcall")
# A reward program: an answer is right when its number of bytes is even.
PROGRAM = """import json, sys
for line in sys.stdin:
    q = json.loads(line)
    n = len(q["response"].encode())
    print(json.dumps({"id": q["id"], "reward": n % 2 == 0, "ans_acc": n % 2 == 0}), flush=True)
"""


def comb(n, k):
    out = 1
    for i in range(k):
        out = out * (n - i) // (i + 1)
    return out if k <= n else 0


class Eval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.model = tiny_model.write(os.path.join(cls.dir.name, "model"))
        cls.data = os.path.join(cls.dir.name, "eval.jsonl")
        with open(cls.data, "w") as f:
            for i in range(20):
                f.write(json.dumps({"messages": {"role": "user", "content": "%d+%d?" % (i, i)}, "gt_answer": str(2 * i)}) + "\n")
        program = os.path.join(cls.dir.name, "even.py")
        with open(program, "w") as f:
            f.write(PROGRAM)
        cls.program = "program:/usr/bin/python3 " + program

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def run_eval(self, *more, want=0, data=None):
        p = subprocess.run([ROLLCALL, "eval", "--model", self.model, "--dataset", data or self.data, "--temperature", "1",
                            "--seed", "1", "--max-new-tokens", "24", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           stdin=subprocess.DEVNULL, timeout=120)
        self.assertEqual(p.returncode, want, p.stderr.decode())
        return p

    def test_counts_mean_and_pass_at_k_are_those_of_the_records(self):
        path = os.path.join(self.dir.name, "records.jsonl")
        p = self.run_eval("--reward-type", self.program, "--n", "6", "--output", path)
        r = json.loads(p.stdout)
        with open(path, encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        self.assertEqual([(x["row"], x["sample"]) for x in records], [(i, k) for i in range(20) for k in range(6)])
        right = [sum(x["ans_valid"] for x in records[6 * i:6 * i + 6]) for i in range(20)]
        self.assertTrue(0 < sum(right) < 120)
        self.assertEqual((r["n"], r["n_sample"], r["n_scored"], r["n_correct"]), (20, 120, 120, sum(right)))
        self.assertAlmostEqual(r["mean"], sum(right) / 120, places=9)
        self.assertEqual(sorted(r["pass_at"]), ["1", "2", "4", "6"])
        for k in (1, 2, 4, 6):
            want = sum(1 - comb(6 - c, k) / comb(6, k) for c in right) / 20
            self.assertAlmostEqual(r["pass_at"][str(k)], want, places=9)
        for x in records:
            for field in ("prompt", "prediction", "gold", "parsed", "format_valid", "ans_valid", "response_length", "reward"):
                self.assertIn(field, x)
        self.assertEqual(records[7]["gold"], "2")
        self.assertIn("1+1?", records[7]["prompt"])
        again = self.run_eval("--reward-type", self.program, "--n", "6", "--batch", "5", "--threads", "1")
        self.assertEqual(again.stdout, p.stdout)
        streamed = self.run_eval("--reward-type", self.program, "--n", "6", "--output", "-")
        self.assertEqual([json.loads(line) for line in streamed.stdout.splitlines()], records)
        self.assertIn(p.stdout, streamed.stderr)    # the result, after what it says of itself
        p = self.run_eval("--reward-type", self.program, "--output", path, want=1)
        self.assertIn("records.jsonl", p.stderr.decode())

    def test_tags_that_are_special_tokens_reach_the_reward(self):
        tags = tiny_model.write(os.path.join(self.dir.name, "tags"))
        program = os.path.join(self.dir.name, "tags.py")
        with open(program, "w") as f:
            f.write(PROGRAM.replace('n = len(q["response"].encode())', 'n = q["response"].count("<answer>") + q["response"].count("[A]") + 1'))
        own = ["--response-format-tags", '{"answer_start":{"text":"[A]","num_occur":1}}']
        for text, more, shown in (("<pad>", [], False), ("<answer>", [], True), ("[A]", [], False), ("[A]", own, True)):
            tiny_model.pad_rename(tags, text)
            p = subprocess.run([ROLLCALL, "eval", "--model", tags, "--dataset", self.data, "--temperature", "1", "--n", "8",
                                "--max-new-tokens", "24", "--reward-type", "program:/usr/bin/python3 " + program, *more],
                               capture_output=True, text=True, timeout=120)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual(json.loads(p.stdout)["n_correct"] > 0, shown, (text, p.stdout))

    def test_the_system_prompt_is_that_of_training_and_is_said(self):
        shown = {}
        run = os.path.join(self.dir.name, "run")    # of a run's folder only what is read
        checkpoint = os.path.join(run, "checkpoints/step-1")
        shutil.copytree(self.model, checkpoint)

        def run_file(system):
            with open(os.path.join(run, "run.yaml"), "w") as f:
                f.write("model: m\n" + (f"system_prompt: {system}\n" if system else ""))
        for name, model, system, more in (("reward", self.model, None, []), ("none", self.model, None, ["--system-prompt", "none"]),
                                          ("given", self.model, None, ["--system-prompt", "be brief"]), ("run", checkpoint, "be kind", []),
                                          ("run none", checkpoint, "none", []), ("run unset", checkpoint, None, []),
                                          ("run, reward", checkpoint, "be kind", ["--default-system-prompt"])):
            run_file(system)
            out = os.path.join(self.dir.name, f"system {name}.jsonl")
            p = self.run_eval("--limit", "1", "--output", out, "--model", model, *more)
            with open(out) as f:
                shown[name] = json.loads(f.readline())["prompt"], p.stderr.decode()
        own = "put your final answer within \\boxed{}."
        for name, system, said in (("reward", own, "the reward_type's own"), ("none", None, "none"), ("given", "be brief", '"be brief"\n'),
                                   ("run", "be kind", '"be kind"\n'), ("run none", None, "none"), ("run unset", own, "the reward_type's own"),
                                   ("run, reward", own, "the reward_type's own")):
            with self.subTest(name):
                prompt, stderr = shown[name]
                self.assertIn(system or shown["none"][0], prompt)
                self.assertEqual(prompt == shown["none"][0], system is None)
                self.assertIn("system prompt: ", stderr)
                self.assertIn(said, stderr)

        with open(os.path.join(run, "run.yaml"), "w") as f:
            f.write("model: [\n")
        self.assertRegex(self.run_eval("--limit", "1", "--model", checkpoint).stderr.decode(),
                         r"run\.yaml.*the system prompt of its run is not known: give it with --system-prompt")

    def test_a_random_model_solves_nothing_and_is_scored_all_the_same(self):
        r = json.loads(self.run_eval("--reward-type", "boxed", "--temperature", "0", "--n", "2").stdout)
        self.assertEqual((r["n"], r["mean"], r["n_left_out"], r["pass_at"]), (20, 0, 0, {"1": 0, "2": 0}))

    def test_the_first_rows_can_be_taken(self):
        self.assertEqual(json.loads(self.run_eval("--limit", "3").stdout)["n"], 3)

    def test_bad_input_is_one_sentence(self):
        bad = os.path.join(self.dir.name, "bad.jsonl")
        for text, why in (('{"messages":{"role":"user","content":"a"}}\n', "gt_answer"), ("{\n", ":1:"), ("", "bad.jsonl"),
                          ('{"gt_answer":"1"}\n', "messages")):
            with open(bad, "w") as f:
                f.write(text)
            p = self.run_eval(data=bad, want=1)
            self.assertIn(why, p.stderr.decode())
            self.assertEqual(len(p.stderr.decode().splitlines()), 1, p.stderr)
            self.assertEqual(p.stdout, b"")
        for more, why in ((["--reward-type", "bixed"], "boxed"), (["--n", "0"], "--n"), (["--limit", "-1"], "--limit")):
            p = self.run_eval(*more, want=2)
            self.assertIn(why, p.stderr.decode())
        p = self.run_eval(data=os.path.join(self.dir.name, "none.jsonl"), want=1)
        self.assertIn("none.jsonl", p.stderr.decode())


if __name__ == "__main__":
    unittest.main()
