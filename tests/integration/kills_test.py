"""tags: limit=900

Any single process killed or stopped at any moment: the run goes on and ends with the same bytes.

A seeded handful of random moments; LONG=1 runs many more."""
import os
import random
import signal
import sqlite3
import time
import unittest
from run_tools import Run, Task

LONG = bool(os.environ.get("LONG"))
STEPS = 16
KINDS = ["controller", "worker cpu:0", "worker cpu:1", "scorer", "agent", "keeper"]
SETTINGS = [dict(), dict(n_behind=1, train_batch_size=4, train_minibatch_size=4, filter_range=[0.1, 0.9], algo="DAPO"),
            dict(num_inferencer=2, inference_batch_size=4), dict(num_inferencer=2, inference_batch_size=4, n_behind=1)]


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = 0
        cls.wanted = {}

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def run_one(self, settings, disturb):
        """A whole run; disturb(run) is called while it goes. Returns what must be the same in all of them."""
        type(self).n += 1
        run = Run(self.task, f"run-{self.n}", self.task.run_file(**settings), ["--max-steps", str(STEPS)])
        try:
            disturb(run)
            code, last = run.wait()
            self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
            self.assertEqual(run.processes(), {})
            self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
            return run.weights(STEPS), run.ledger()
        finally:
            run.kill()

    def undisturbed(self, settings):
        key = repr(settings)
        if key not in self.wanted:
            self.wanted[key] = self.run_one(settings, lambda run: None)
        return self.wanted[key]

    def kill_at(self, run, name, sig, step, wait_s):
        """Send sig to the process of this name a moment after a step; a run that is over by then is left alone."""
        end = time.monotonic() + 120
        while run.step() < step and run.process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(wait_s)    # a random moment, not a wait for something
        pid = run.processes().get(name)
        if not pid:
            return
        try:
            os.kill(pid, sig)
            if sig == signal.SIGSTOP:
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def alerts(self, run):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return [r[0] for r in db.execute("select text from event where who = 'agent'")]

    def stand_still(self, run, name, live):
        """Stop a process for good and wait until the agent has put another in its place. live: the rule is set by ctl."""
        end = time.monotonic() + 120    # from its first moments on, so that the run cannot end meanwhile
        while run.ctl("pause").returncode != 0 and run.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if run.process.poll() is not None:
            self.skipTest("the run was over before it could be paused")
        pid = run.processes()[name]
        os.kill(pid, signal.SIGSTOP)
        if live:
            done = run.ctl("set", "restart_stuck_s=0.5")
            self.assertEqual(done.returncode, 0, done.stderr)
        end = time.monotonic() + 120
        while run.processes().get(name) in (pid, None) and run.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        self.assertNotEqual(run.processes().get(name), pid, run.logs())
        while not any(f"'{name}' (pid {pid})" in text for text in self.alerts(run)) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertIn(f"'{name}' (pid {pid}) has been stuck for", "\n".join(self.alerts(run)))
        done = run.ctl("resume")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_process_that_stays_stuck_is_started_again_by_rule(self):
        for name, live in (("worker cpu:0", True), ("controller", False)):
            with self.subTest(process=name):
                want = self.undisturbed({})
                rule = {} if live else dict(restart_stuck_s=0.5)
                got = self.run_one(dict(heartbeat_s=0.1, **rule), lambda run: self.stand_still(run, name, live))
                self.assertEqual(want, got)

    def test_the_run_survives_the_death_of_each_kind_of_process(self):
        rng = random.Random(20 if not LONG else time.time_ns())
        cells = [(SETTINGS[i % 4], KINDS[i % len(KINDS)]) for i in range(int(os.environ.get("CELLS", 60 if LONG else 6)))]
        for settings, name in cells:
            sig = signal.SIGKILL if rng.random() < 0.8 else signal.SIGSTOP
            step, wait_s = rng.randrange(-1, STEPS - 2), rng.random() * 0.3
            with self.subTest(process=name, signal=sig.name, step=step, wait_s=wait_s, n_behind=settings.get("n_behind", 0)):
                want = self.undisturbed(settings)
                got = self.run_one(settings, lambda run: self.kill_at(run, name, sig, step, wait_s))
                self.assertEqual(want, got)


if __name__ == "__main__":
    unittest.main()
