"""A whole run gives the same weights and the same rollouts with any number of threads, on every code path of the CPU, and with and
without speculative decoding."""
import os
import subprocess
import unittest
from run_tools import ROLLCALL, Run, Task

STEPS = 4


class Invariance(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.runs = []

    def tearDown(self):
        for run in self.runs:
            run.kill()
        self.task.close()

    def outcome(self, name, path=None, **settings):
        """Hash of the last weights, and everything sampled, in the order of items."""
        old = os.environ.pop("RC_CPU", None)
        if path:
            os.environ["RC_CPU"] = path
        try:
            run = Run(self.task, name, self.task.run_file(save_interval=STEPS, temperature=0.3, max_new_tokens=24, **settings), ["--max-steps", str(STEPS)])
            self.runs.append(run)
            code, last = run.wait()
        finally:
            os.environ.pop("RC_CPU", None)
            if old is not None:
                os.environ["RC_CPU"] = old
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
        self.metrics = [line["metrics"] for line in run.output() if line.get("event") == "step"]
        out = subprocess.run([ROLLCALL, "rollouts", run.dir, "--ids"], capture_output=True, timeout=120, check=True).stdout
        return run.weights(STEPS), sorted(out.splitlines())

    def paths(self):
        """The code paths that this processor has."""
        found = []
        for path in ("avx512", "avx2", "scalar"):
            p = subprocess.run([ROLLCALL, "logprobs", "--model", self.task.path("model")], stdin=subprocess.DEVNULL,
                               capture_output=True, env={**os.environ, "RC_CPU": path}, timeout=120)
            if p.returncode == 0:
                found.append(path)
            else:
                self.assertIn(b"RC_CPU", p.stderr)
        return found

    def test_threads_code_paths_and_drafts_change_no_bit_of_a_run(self):
        want = self.outcome("one", threads=1)
        self.assertEqual(len(want[1]), STEPS * 8 * 4)
        self.assertEqual(self.outcome("two", threads=2), want)
        self.assertEqual(self.outcome("plain", threads=2, speculate="off"), want)
        self.assertFalse(any("rollout/draft_acceptance" in m for m in self.metrics))
        self.assertEqual(self.outcome("drafts", threads=2, speculate="on"), want)
        drafts = [m.get("rollout/draft_acceptance") for m in self.metrics]
        self.assertTrue(any(d and 0 < d < 1 for d in drafts), drafts)
        self.assertTrue(all(0 <= m.get("rollout/idle_share", 0) < 1 for m in self.metrics))
        for path in self.paths():
            self.assertEqual(self.outcome(path, path, threads=2), want, path)


if __name__ == "__main__":
    unittest.main()
