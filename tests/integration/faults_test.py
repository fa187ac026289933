"""tags: limit=600

What a run does on a full disk, on a read-only one, under a wall clock that jumps, with a reward that hangs, and with its newest
checkpoint broken. The faults are made by faults_preload.c, so that they need no rights and come at a known moment."""
import json
import os
import signal
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, Run, Task

STEPS = 12
FULL = "disk is full|No space left"
PRELOAD = os.path.join(os.path.dirname(ROLLCALL), "tests/faults_preload.so")


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = 0
        with open(cls.task.path("train.jsonl")) as f, open(cls.task.path("few.jsonl"), "w") as few:
            few.writelines(f.readlines()[:4])
        straight = Run(cls.task, "straight", cls.task.run_file(), ["--max-steps", str(STEPS)])
        code, last = straight.wait()
        assert (code, last["step"]) == (0, STEPS), straight.logs()
        cls.want = straight.weights(STEPS), straight.ledger()
        straight.kill()

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def setUp(self):
        type(self).n += 1
        self.name = f"run-{self.n}"
        self.holds = Holds(self.task.path(f"holds-{self.n}"))
        self.flags = self.task.path(f"flags-{self.n}")
        os.mkdir(self.flags)

    def env(self):
        return dict(LD_PRELOAD=PRELOAD, RC_FAULTS=self.flags, RC_FAULTS_UNDER=os.path.join(self.task.path("runs"), self.name),
                    RC_TEST_HOLD=self.holds.dir)

    def flag(self, name, on):
        path = os.path.join(self.flags, name)
        if on:
            open(path, "w").close()
        else:
            os.unlink(path)

    def start(self, **kwargs):
        extra = kwargs.pop("extra", ["--max-steps", str(STEPS)])
        run = Run(self.task, self.name, self.task.run_file(**kwargs), extra, env=self.env())
        self.addCleanup(run.kill)
        return run

    def resume_and_compare(self, *extra):
        run = Run(self.task, self.name, resume=True, extra=extra)
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(self.want, (run.weights(STEPS), run.ledger()))
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        return run

    def wait_held(self, run, process, point):
        end = time.monotonic() + LIMIT
        while not self.holds.held(process, point):
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            time.sleep(0.003)
        return self.holds.held(process, point)

    def disk_fails(self, flag, process, point, words):
        """The disk fails while this process is at this point: the run says so and ends, and goes on when the disk is well."""
        run = self.start()
        run.wait_step(2)
        self.holds.arm(process, point)
        pid = self.wait_held(run, process, point)
        self.flag(flag, True)
        self.holds.release(process, point, pid)
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (1, "failed"), run.logs())
        self.assertRegex(last["reason"], words, run.logs())
        self.assertIn(run.dir, last["reason"])
        self.assertEqual(run.processes(), {})
        self.flag(flag, False)
        self.resume_and_compare()

    def test_a_disk_that_is_full_while_a_checkpoint_is_written_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("full", "worker cpu:0", "saving", FULL)

    def test_a_disk_that_is_full_while_groups_come_in_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("full", "controller", "answering", FULL)

    def test_a_disk_that_becomes_read_only_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("readonly", "worker cpu:0", "training", "--resume")    # the reason has no place to be kept

    def test_a_read_only_place_for_a_run_is_refused_in_one_sentence(self):
        self.flag("readonly", True)
        run = self.start()
        code, _ = run.wait()
        self.assertEqual(code, 1)
        run.errors.seek(0)
        lines = run.errors.read().strip().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("Read-only file system", lines[0])
        self.assertIn(run.dir, lines[0])
        self.assertFalse(os.path.exists(run.dir))

    def test_a_wall_clock_that_jumps_by_days_hurts_no_time_limit(self):
        self.flag("jump", True)
        seen = subprocess.run(["date", "+%s"], env=dict(os.environ, **self.env()), capture_output=True, text=True)
        self.assertGreater(abs(int(seen.stdout) - time.time()), 3600, "the clock does not jump: this test would prove nothing")
        run = self.start(eval_dataset=json.dumps({"some": self.task.path("few.jsonl")}), eval_interval=4)
        self.holds.arm("worker cpu:0", "trained")
        pid = self.wait_held(run, "worker cpu:0", "trained")
        os.kill(pid, signal.SIGSTOP)    # a limit that is due comes, and not before its time
        before = time.monotonic()
        late = run.ctl("checkpoint", "--limit", "2")
        self.assertEqual(late.returncode, 1)
        self.assertIn("has not taken effect in time", late.stderr)
        self.assertGreaterEqual(time.monotonic() - before, 2)
        self.holds.release("worker cpu:0", "trained", pid)
        os.kill(pid, signal.SIGCONT)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(self.want, (run.weights(STEPS), run.ledger()))
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
            self.assertEqual(db.execute("select text from event where kind in ('alert', 'return')").fetchall(), [])
            self.assertEqual([r[0] for r in db.execute("select step from eval")], [0, 4, 8, STEPS])
        with open(os.path.join(run.dir, "logs/agent.log")) as f:
            self.assertNotIn("was killed", f.read())

    def test_a_reward_that_hangs_costs_its_samples_and_not_the_run(self):
        program = self.task.path("hangs.py")
        with open(program, "w") as f:    # for ever, on one answer in so many
            f.write("import json, sys, time\nfor line in sys.stdin:\n    q = json.loads(line)\n    good = sum(map(ord, q['response'])) % 16\n"
                    "    while good == 0:\n        time.sleep(3600)\n"
                    "    print(json.dumps({'id': q['id'], 'reward': good, 'format_acc': 1, 'ans_acc': good > 7}), flush=True)\n")
        run = self.start(reward_type=f"program:/usr/bin/python3 {program}", reward_timeout_s=0.5, extra=["--max-steps", "2"],
                         scorer_threads=2)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 2), run.logs())
        told = [line["metrics"] for line in run.output() if line.get("event") == "step"]
        left_out = [m[k] for m in told for k in m if "left_out" in k]
        self.assertEqual(len(left_out), 2)
        self.assertGreater(sum(left_out), 0)
        self.assertLess(max(left_out), 1)

    def test_a_newest_checkpoint_that_is_broken_is_named_and_the_one_before_is_used(self):
        for file, damage in (("model.safetensors", "cut"), ("state/trainer.safetensors", "changed"), ("state/manifest.json", "gone")):
            with self.subTest(file=file, damage=damage):
                self.setUp()
                run = self.start(extra=["--max-steps", "9"])
                self.assertEqual(run.wait()[0], 0, run.logs())
                with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
                    newest = db.execute("select max(path) from checkpoint where state = 'complete'").fetchone()[0][-11:]
                path = os.path.join(run.dir, "checkpoints", newest, file)
                if damage == "cut":
                    os.truncate(path, os.path.getsize(path) // 2)
                elif damage == "changed":
                    with open(path, "r+b") as f:
                        f.seek(-5, os.SEEK_END)
                        f.write(b"\x55")
                else:
                    os.unlink(path)
                again = self.resume_and_compare("--max-steps", str(STEPS))
                with sqlite3.connect(f"file:{os.path.join(again.dir, 'journal.db')}?mode=ro", uri=True) as db:
                    alerts = [r[0] for r in db.execute("select text from event where kind = 'alert'")]
                self.assertTrue(any(file in a and f"step {int(newest[5:])} is broken" in a for a in alerts), alerts)


if __name__ == "__main__":
    unittest.main()
