"""tags: limit=300

The same rows from JSON lines, CSV and a data set of the hub in Parquet: the same run, to the byte; and data exchanged under it."""
import csv
import json
import os
import shutil
import subprocess
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, Run, Task

GOLDEN = os.path.join(ROOT, "tests/golden/data/gsm8k")
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Data(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.addCleanup(self.task.close)
        self.hub = self.task.path("hub")
        self.env = {"HF_HUB_CACHE": self.hub}

    def finished(self, name, dataset, **settings):
        run = Run(self.task, name, self.task.run_file(name + ".yaml", dataset=dataset, save_interval=2, max_steps=2, **settings), env=self.env)
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 2), run.logs())
        return run

    def hub_write(self, rows):
        """A data set as the hub's cache holds it: the branch, and a snapshot of two files in a folder of the default configuration."""
        repo = os.path.join(self.hub, "datasets--org--sums")
        folder = os.path.join(repo, "snapshots", COMMIT, "main")
        os.makedirs(folder)
        os.makedirs(os.path.join(repo, "refs"))
        with open(os.path.join(repo, "refs", "main"), "w") as f:
            f.write(COMMIT)
        shutil.copy(GOLDEN + ".parquet", os.path.join(folder, "train-00000-of-00002.parquet"))
        with open(os.path.join(folder, "train-00001-of-00002.parquet"), "w") as f:    # the content of a file counts, not its name
            f.write(json.dumps(rows))
        with open(os.path.join(folder, "test-00000-of-00001.jsonl"), "w") as f:
            f.write('{"not": "read"}\n')
        with open(os.path.join(folder, "..", "README.md"), "w") as f:
            f.write("---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n"
                    "  - split: test\n    path: main/test-*\n---\n")
        return os.path.join(folder, "train-00001-of-00002.parquet")

    def test_the_kind_of_file_does_not_change_the_run_and_exchanged_files_are_noticed(self):
        with open(GOLDEN + ".jsonl") as f:
            rows = [json.loads(line) for line in f]
        more = [{"question": f"And {i}?", "answer": f"#### {i}"} for i in range(8)]
        with open(self.task.path("rows.jsonl"), "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows + more)
        with open(self.task.path("rows.csv"), "w", newline="") as f:
            table = csv.DictWriter(f, ["answer", "question"])
            table.writeheader()
            table.writerows(rows + more)
        last_file = self.hub_write(more)
        runs = [self.finished("lines", self.task.path("rows.jsonl")), self.finished("csv", self.task.path("rows.csv")),
                self.finished("hub", "org/sums", prompt_template="{question}")]
        for run in runs[1:]:
            self.assertEqual(run.weights(2), runs[0].weights(2), run.dir)
        with open(os.path.join(runs[2].dir, "run.yaml")) as f:
            self.assertRegex(f.read(), rf"dataset: \"?org/sums@{COMMIT}")
        self.assertIn("2 different files; GSM8K's layout: prompt by prompt_template, answer from 'answer'", runs[2].logs())
        with open(last_file, "w") as f:
            f.write(json.dumps(more[::-1]))
        done = subprocess.run([ROLLCALL, "train", "--batch", "--resume", runs[2].dir, "--max-steps", "4"], capture_output=True, text=True,
                              timeout=LIMIT, env=dict(os.environ, **self.env))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("dataset: not what the run", done.stderr)

    def test_a_dry_run_says_what_is_recognised_and_where_a_row_is_wrong(self):
        file = self.task.run_file(reward_type="boxed")

        def dry(*args):
            return subprocess.run([ROLLCALL, "train", file, "--dry-run", "--runs-dir", self.task.path("runs"), *args], capture_output=True,
                                  text=True, timeout=LIMIT, env=dict(os.environ, **self.env))
        done = dry("--dataset", GOLDEN + ".parquet")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("64 prompts: Parquet; GSM8K's layout: prompt from 'question', answer from 'answer'", done.stdout)
        self.hub_write([{"question": "1+1", "answer": "2"}, {"question": "1+2"}])
        done = dry("--dataset", "org/sums")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("train-00001-of-00002.parquet, row 2: ", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
