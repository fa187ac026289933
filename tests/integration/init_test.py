"""tags: starter limit=300

A run file from a few answers: asked for on a terminal or given as flags, and it trains."""
import json
import os
import pty
import re
import select
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, Task


class Init(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.addCleanup(self.task.close)
        self.env = {**os.environ, "HF_HUB_CACHE": self.task.path("hub"), "HF_HUB_OFFLINE": "1"}

    def init(self, *args):
        return subprocess.run([ROLLCALL, "init", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self.env,
                              cwd=self.task.dir, timeout=LIMIT)

    def test_flags_make_a_file_that_trains(self):
        done = self.init("-m", "model", "-d", "train.jsonl", "--hours", "0.01", "--max-new-tokens", "8", "--yes")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("64 prompts", done.stderr)
        run_file = self.task.path("run.yaml")
        with open(run_file) as f:
            text = f.read()
        self.assertIn(f'model: "{os.path.realpath(self.task.path("model"))}"', text)
        self.assertIn("reward_type: boxed", text)
        # a model of random weights answers nothing right, with a system prompt or without
        self.assertRegex(done.stderr, r"the reward's own +0\.0 % .*\n +none +0\.0 % ")
        self.assertIn("warning: no prompt has both right and wrong answers", done.stderr)
        self.assertRegex(text, r"# system_prompt: none    # of 256 answers 0\.0 % were right without a system prompt")
        self.assertIn("max_hours: 0.01 ", text)
        self.assertNotIn("max_steps", text)
        self.assertEqual(sorted(n for n in os.listdir(self.task.dir) if n.startswith("run.yaml")), ["run.yaml"])
        dry = subprocess.run([ROLLCALL, "train", run_file, "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(dry.returncode, 0, dry.stderr)
        self.assertRegex(dry.stdout, r"time: +at most about [0-9.e-]+ s a step \(generating [0-9.e-]+ s, training [0-9.e-]+ s\)")
        self.assertRegex(dry.stdout, r"as long as allowed; (uncertain by \d+ %|a guess: the probe's\s+rounds differ more than twofold|there was time for\s+one round only)")
        done = subprocess.run([ROLLCALL, "train", run_file, "--batch", "--format", "jsonl", "--max-steps", "1", "--waste-alert", "0",
                               "--threads", "1", "--runs-dir", self.task.path("runs")], capture_output=True, text=True, timeout=LIMIT)
        last = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(last.get("step"), 1, done.stdout + done.stderr)

    def test_the_starter_is_trained_without_the_system_prompt_that_it_never_saw(self):
        done = self.init("-m", os.path.join(ROOT, "build/starter"), "-d", os.path.join(ROOT, "build/data/train.jsonl"), "--hours", "0.01", "--yes")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("chosen: none", done.stderr)
        with open(self.task.path("run.yaml")) as f:
            text = f.read()
        shares = re.search(r"^system_prompt: none    # of 256 answers ([\d.]+) % were right without a system prompt, and ([\d.]+) %", text, re.M)
        self.assertGreater(float(shares[1]), 20)
        self.assertLess(float(shares[2]), 5)
        # about what a step takes, not what it would if all answers were as long as allowed
        step_s = float(re.search(r"about \d+ steps of ([\d.e-]+) s", done.stdout)[1])
        worst = subprocess.run([ROLLCALL, "train", self.task.path("run.yaml"), "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertLess(step_s, 0.8 * float(re.search(r"at most about ([\d.e-]+) s a step", worst.stdout)[1]))

    def test_the_run_files_of_the_examples_hold_together(self):
        folder = os.path.join(ROOT, "examples/runs")
        for name in sorted(os.listdir(folder)):
            with self.subTest(file=name), open(os.path.join(folder, name)) as f:
                text = f.read()
                n = text.count("cuda:")    # the models, the data and the devices are others here; the rest is checked as it is
                done = subprocess.run([ROLLCALL, "train", f.name, "--dry-run", "-m", self.task.path("model"), "-d", self.task.path("train.jsonl"),
                                       "--eval-dataset", "", "--devices", ",".join(f"cpu:{i}" for i in range(n)), "--max-prompt-tokens", "128",
                                       "--max-new-tokens", "64", "--offload-optimizer", "false",
                                       *(["--teacher", self.task.path("model")] if "teacher:" in text else [])], capture_output=True, text=True, timeout=LIMIT)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("warning", done.stderr)

    def test_what_is_wrong_is_said_and_nothing_is_written(self):
        before = sorted(os.listdir(self.task.dir))
        with open(self.task.path("no_answers.jsonl"), "w") as f:
            f.write('{"messages": [{"role": "user", "content": "hello"}]}\n')
        for args, code, words in (
            (["-m", "model"], 2, ["no terminal", "--dataset"]),
            (["-m", "org/none", "-d", "train.jsonl"], 1, ["org/none", "rollcall pull"]),
            (["-m", "model", "-d", "none.jsonl"], 1, ["none.jsonl"]),
            (["-m", "model", "-d", "no_answers.jsonl"], 1, ["no_answers.jsonl", "answer"]),
            (["-m", "model", "-d", "train.jsonl", "--devices", "cuda:77"], 1, ["cuda:77"]),
            (["-m", "model", "-d", "train.jsonl", "--hours", "-1"], 2, ["--hours"]),
            (["-m", "model", "-d", "train.jsonl", "--max-new-tokens", "100000"], 2, ["--max-new-tokens", "positions"]),
        ):
            with self.subTest(args=args):
                done = self.init(*args)
                last = done.stderr.splitlines()[-1]
                self.assertEqual(done.returncode, code, last)
                for word in words:
                    self.assertIn(word, last)
        os.unlink(self.task.path("no_answers.jsonl"))
        self.assertEqual(sorted(os.listdir(self.task.dir)), before)
        with open(self.task.path("run.yaml"), "w") as f:
            f.write("mine")
        done = self.init("-m", "model", "-d", "train.jsonl")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--force", done.stderr)
        with open(self.task.path("run.yaml")) as f:
            self.assertEqual(f.read(), "mine")

    def test_questions_come_again_until_the_answer_works(self):
        child, screen = pty.fork()
        if child == 0:
            os.chdir(self.task.dir)
            os.execve(ROLLCALL, [ROLLCALL, "init", "--max-new-tokens", "8"], self.env)
        shown, end = "", time.monotonic() + LIMIT
        for question, answer in (("Model", "nothing-here"), ("Model", "model"), ("Data", "train.jsonl"), ("Devices", ""), ("Hours", "soon"),
                                 ("Hours", "0.01")):
            at = len(shown)
            while not (question in shown[at:] and shown.endswith("]: ")) and time.monotonic() < end:
                if select.select([screen], [], [], 1)[0]:
                    shown += os.read(screen, 4096).decode()
            os.write(screen, (answer + "\n").encode())
            shown += "\n"
        try:
            while time.monotonic() < end:
                shown += os.read(screen, 4096).decode()
        except OSError:    # the end, on a terminal
            pass
        os.close(screen)
        self.assertEqual(os.waitpid(child, 0)[1], 0, shown)
        self.assertIn("'soon' is not a number of hours", shown)
        self.assertIn("rollcall train run.yaml", shown)
        self.assertTrue(os.path.exists(self.task.path("run.yaml")))


if __name__ == "__main__":
    unittest.main()
