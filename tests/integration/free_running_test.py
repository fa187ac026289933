"""tags: limit=600

Free-running: producers never wait, nothing is trained on twice or too old, and the run outlives its processes."""
import json
import os
import signal
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, Run, Task

STEPS = 24
BOUND = 3
FREE = dict(num_inferencer=2, placement="apart", free_running=True, max_staleness=BOUND, inference_batch_size=4,
            inference_microbatch_size=4, max_new_tokens=40)


class FreeRunning(unittest.TestCase):
    def setUp(self):
        self.task = Task()

    def tearDown(self):
        self.task.close()

    def check(self, kills, disturb=None, **settings):
        holds = Holds(self.task.path("holds"))
        run = Run(self.task, "run", self.task.run_file(**FREE, **settings), ["--max-steps", str(STEPS)], env=dict(RC_TEST_HOLD=holds.dir))
        try:
            if disturb:
                disturb(run, holds)
            for step, name in kills:
                run.wait_step(step)
                os.kill(run.processes()[name], signal.SIGKILL)
            code, last = run.wait()
            self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
            self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
            with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
                trained = db.execute("select step, count(*), min(step - 1 - weight_version), max(step - 1 - weight_version) from item "
                                     "where fate = 4 group by step order by step").fetchall()
            self.assertEqual([row[:2] for row in trained], [(step, 8) for step in range(1, STEPS + 1)])    # each item once
            self.assertLessEqual(max(row[3] for row in trained), BOUND)
            self.assertGreater(max(row[3] for row in trained), 0)    # generation went on while the trainer trained
            out = subprocess.run([ROLLCALL, "export", "jsonl", run.dir], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
            self.steps = [json.loads(line)["metrics"] for line in out.splitlines()]
            return trained
        finally:
            run.kill()

    def test_every_batch_is_full_and_no_token_older_than_the_bound(self):
        trained = self.check([], peak_tflops=1, peak_gb_per_s=10)
        self.assertGreaterEqual(min(row[2] for row in trained), 0)
        sampled = [m for m in self.steps if m["time/generate_s"] > 0]    # what producers took for the groups that came in a step
        for m in sampled:
            self.assertTrue(0 < m["perf/rollout_mfu"] < 1 and 0 < m["perf/rollout_mbu"] < 10 and 0 <= m["rollout/idle_share"] <= 1, m)
        n_tok = sum(m["perf/rollout_tok_per_s"] * m["time/generate_s"] for m in sampled)
        total = self.steps[-1]["rollout/tokens_total"]
        self.assertTrue(total - 4 * 4 * 40 <= n_tok <= 1.001 * total, (n_tok, total))    # what ended together is told with the first of it

    def test_a_producer_and_a_trainer_may_die(self):
        self.check([(3, "worker cpu:1"), (8, "worker cpu:0"), (12, "controller")])

    def test_a_producer_that_is_late_for_weights_takes_newer_ones(self):
        def late(run, holds):
            run.wait_step(2)
            holds.arm("worker cpu:1", "generating")
            end = time.monotonic() + LIMIT
            while not (pid := holds.held("worker cpu:1", "generating")):
                self.assertLess(time.monotonic(), end, run.logs())
                time.sleep(0.005)
            run.wait_step(run.step() + 4)    # of all that it is asked to take meanwhile only the newest is there still
            holds.release("worker cpu:1", "generating", pid)
        self.check([], late)

    def test_weights_come_out_of_the_trainers_memory(self):
        for way in ("copy", "nccl"):
            with self.subTest(way=way):
                self.check([(5, "worker cpu:1")], weights=way)
                self.task.close()
                self.task = Task()

    def test_two_trainers(self):
        self.check([(5, "worker cpu:1")], num_trainers=2, train_batch_size=4, train_minibatch_size=4)

    def test_it_says_that_it_does_not_repeat_and_refuses_what_makes_no_sense(self):
        for settings, want in (({}, "free-running:   not repeatable; a group's first token is at most 3 optimizer steps old"),
                               (dict(placement="shared"), "'free_running' needs 'placement' apart"),
                               (dict(n_behind=1), "'n_behind' (1) has no meaning with 'free_running'")):
            file = self.task.run_file(**{**FREE, **settings})
            done = subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True)
            self.assertIn(want, done.stdout + done.stderr)
            self.assertEqual(done.returncode, 0 if not settings else 2)


if __name__ == "__main__":
    unittest.main()
