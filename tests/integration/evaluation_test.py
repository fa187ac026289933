"""tags: limit=600

Evaluations of a run: every layout says what `rollcall eval` says of the checkpoint of that step, whoever samples and whoever dies.
Producers share the work, and with weights of their own they leave training alone."""
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import unittest
from run_tools import ROLLCALL, Holds, RunCase

STEPS = 4
APART = dict(devices="cpu:0,cpu:1,cpu:2", num_inferencer=2, num_trainers=1, placement="apart", inference_batch_size=4, inference_microbatch_size=4)
LAYOUTS = {
    "one device": dict(),
    "one device, samples ahead": dict(n_behind=1),
    "two that sample and train": dict(devices="cpu:0,cpu:1", num_inferencer=2, num_trainers=2, inference_batch_size=4, train_batch_size=4,
                                      train_minibatch_size=4),
    "producers apart": dict(APART),
    "producers apart, out of the trainer's own weights": dict(APART, weights="copy"),
    "producers apart, ahead, by file": dict(APART, n_behind=1, weights="files"),
    "producers apart, ahead, by memory": dict(APART, n_behind=1, weights="copy", train_batch_size=4, train_minibatch_size=4),
    "free-running": dict(APART, free_running=True, max_staleness=2),
}
SHARED = {"two that sample and train", "producers apart", "producers apart, out of the trainer's own weights",
          "producers apart, ahead, by file", "producers apart, ahead, by memory"}


class Evaluations(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.task.path("eval.jsonl")
        with open(cls.task.path("train.jsonl")) as f, open(cls.data, "w") as out:
            for line in list(f)[:11]:
                out.write(line)
            # longer than max_prompt_tokens: it counts for nothing
            out.write(json.dumps({"messages": [{"role": "user", "content": "1+" * 200}], "gt_answer": "1"}) + "\n")

    def evaluated(self, run):
        """The steps whose results are noted."""
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
            return [row[0] for row in db.execute("select distinct step from eval order by step")]

    def run_one(self, disturb=None, steps=STEPS, env=None, **settings):
        run = self.start("--max-steps", str(steps), env=env, save_interval=2, eval_interval=2, max_new_tokens=12,
                         eval_dataset=json.dumps({"greedy": {"path": self.data, "temperature": 0},
                                                  "drawn": {"path": self.data, "temperature": 1, "n": 3, "limit": 7}}), **settings)
        if disturb:
            disturb(run)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", steps), run.logs())
        return run

    def records(self, path):
        with open(path) as f:
            return [(r["prompt"], r["sample"], r["response_length"], r["prediction"]) for r in map(json.loads, f)]

    def check(self, run):
        """Each evaluation has the answers of the checkpoint of its step, in order."""
        for step in range(0, STEPS + 1, 2):
            model = os.path.join(run.dir, "checkpoints", f"step-{step:06}") if step else self.task.path("model")
            for name, options in (("greedy", ["-T", "0"]), ("drawn", ["-T", "1", "--n", "3", "--limit", "7"])):
                out = self.task.path(f"{os.path.basename(run.dir)}-{name}-{step}.jsonl")
                done = subprocess.run([ROLLCALL, "eval", "-m", model, "-d", self.data, "-rt", f"program:{sys.executable} {self.task.path('reward.py')}",
                                       "-mnt", "12", "-mpt", "64", "--long-prompt", "drop", "-s", "none", "--threads", "1", "-o", out, *options],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                want, got = self.records(out), self.records(os.path.join(run.dir, "eval", f"{name}_training_step_{step}.jsonl"))
                self.assertEqual([r[:2] for r in got], [r[:2] for r in want])
                if name == "greedy":    # the others are drawn with numbers of their own
                    self.assertEqual(got, want)

    def parts(self, run):
        """step -> {worker: parts that it was given}"""
        parts = {}
        with open(os.path.join(run.dir, "logs", "controller.log")) as f:
            for worker, step in re.findall(r"(worker \S+) evaluates step (\d+), part", f.read()):
                parts.setdefault(int(step), []).append(worker)
        return parts

    def test_every_layout_evaluates_the_weights_of_the_step(self):
        workers = [f"worker cpu:{i}" for i in range(3)]
        for name, settings in LAYOUTS.items():
            with self.subTest(name):
                holds = Holds(self.task.path(f"holds of {name}"))

                def two_share(run):
                    """None evaluates a part before another one has been given a part, too. A worker that had not started yet when the
                    first evaluation began would get none of it."""
                    there = workers[:settings["devices"].count(",") + 1]
                    self.until("all have started", lambda: all(holds.held(w, "loading") is not None for w in there), run)
                    for w in there:
                        holds.disarm(w, "loading")
                    self.until("two evaluate", lambda: sum(holds.held(w, "evaluating") is not None for w in workers) >= 2, run)
                    for w in workers:
                        holds.disarm(w, "evaluating")
                for w in workers if name in SHARED else ():
                    holds.arm(w, "loading")
                    holds.arm(w, "evaluating")
                run = self.run_one(two_share if name in SHARED else None, env=dict(RC_TEST_HOLD=holds.dir), **settings)
                self.check(run)
                parts = self.parts(run)
                self.assertEqual(sorted(parts), [0, 2, 4])
                if name in SHARED:
                    self.assertGreater(len(set(parts[0])), 1, parts)
                run.kill()

    def test_who_dies_while_it_evaluates_changes_nothing(self):
        holds = Holds(self.task.path("holds"))

        workers = [f"worker cpu:{i}" for i in range(3)]

        def kill(*names):
            """Kill each while somebody evaluates."""
            def disturb(run):
                for name in names:
                    for w in workers:
                        holds.arm(w, "evaluating")
                    self.until("somebody evaluates", lambda: any(holds.held(w, "evaluating") for w in workers), run)
                    os.kill(run.processes()[name], signal.SIGKILL)
                    for w in workers:
                        holds.disarm(w, "evaluating")
            return disturb
        for settings, disturbs in ((dict(APART, n_behind=1), (None, kill("worker cpu:1", "controller"), kill("worker cpu:0", "scorer"))),
                                   (dict(APART, weights="copy"), (None, kill("worker cpu:1", "worker cpu:2"), kill("worker cpu:0")))):
            runs = []
            for disturb in disturbs:
                runs.append(self.run_one(disturb, env=dict(RC_TEST_HOLD=holds.dir), **settings))
                runs[-1].kill()
            self.check(runs[0])
            for run in runs:
                self.assertEqual(run.weights(STEPS), runs[0].weights(STEPS))
                for name in ("greedy", "drawn"):
                    for step in range(0, STEPS + 1, 2):
                        file = f"eval/{name}_training_step_{step}.jsonl"
                        self.assertEqual(*(self.records(os.path.join(r.dir, file)) for r in (run, runs[0])), file)

    def test_training_goes_on_while_producers_evaluate(self):
        holds = Holds(self.task.path("holds-2"))
        producers = ["worker cpu:1", "worker cpu:2"]
        for name in producers:
            holds.arm(name, "evaluating")

        def disturb(run):
            self.until("a producer evaluates", lambda: any(holds.held(name, "evaluating") for name in producers), run)
            known = set(self.evaluated(run))
            self.until("a step is made that is to be evaluated later", lambda: run.step() // 2 * 2 > max(known, default=-2) + 2, run)
            self.assertEqual(set(self.evaluated(run)), known)
            for name in producers:
                holds.disarm(name, "evaluating")
        steps = 12
        run = self.run_one(disturb, steps, env=dict(RC_TEST_HOLD=holds.dir), **dict(APART, n_behind=1, weights="files"))
        self.assertEqual(self.evaluated(run), list(range(0, steps + 1, 2)))


if __name__ == "__main__":
    unittest.main()
