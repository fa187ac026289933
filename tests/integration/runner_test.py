"""How tests/runner.py treats tests that pass, fail, fail once, or are skipped."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import runner

# Fails until the given number have run.
FAILS_FIRST = "f=$1; echo ran >>$f; [ $(wc -l <$f) -gt $2 ] || { echo 'Assertion went wrong'; exit 1; }"


class Runner(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="runner-")
        self.addCleanup(self.dir.cleanup)
        was = runner.LOGS
        runner.LOGS = self.dir.name
        self.addCleanup(setattr, runner, "LOGS", was)

    def failing(self, name, times, **more):
        return runner.Test(name, ["sh", "-c", FAILS_FIRST, "sh", os.path.join(self.dir.name, "count"), str(times)], **more)

    def shell(self, name, script):
        return runner.Test(name, ["sh", "-c", script])

    def outcome(self, call, *args):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = call(*args)
        return status, out.getvalue().splitlines()

    def log(self, name):
        with open(os.path.join(self.dir.name, name)) as f:
            return f.read()

    def test_one_that_fails_once_is_flaky_and_its_first_log_is_kept(self):
        status, lines = self.outcome(runner.run_once, [self.failing("unit/now_and_then", 1), self.shell("unit/good", "exit 0"),
                                                       self.shell("unit/absent", "echo no such device; exit 77")])
        self.assertEqual(status, 0, lines)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")
        flaky = [x for x in lines if x.startswith("flaky   unit/now_and_then: ")]
        self.assertEqual(len(flaky), 1, lines)
        self.assertIn("unit-now_and_then.first.log", flaky[0])
        self.assertIn("went wrong", self.log("unit-now_and_then.first.log"))
        self.assertEqual(self.log("unit-now_and_then.log"), "")

    def test_one_that_fails_twice_fails_the_run(self):
        status, lines = self.outcome(runner.run_once, [self.failing("unit/bad", 2, tags=["alone"]), self.shell("unit/good", "exit 0")])
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")
        self.assertIn("FAILED  unit/bad", lines)

    def test_the_second_try_has_the_machine_for_itself(self):
        busy = os.path.join(self.dir.name, "busy")
        other = self.shell("unit/other", f"mkdir {busy}; sleep 0.5; rmdir {busy}")
        _, lines = self.outcome(runner.run_once, [other, self.shell("unit/needs_peace", f"for i in 1 2 3 4 5 6 7 8; do "
                                                                    f"[ -e {busy} ] && exit 1; sleep 0.1; done")])
        self.assertEqual(lines[-1], "2 passed, 0 failed, 0 skipped", lines)

    def test_many_failures_are_not_bad_luck(self):
        tests = [self.shell(f"unit/bad{i}", "exit 1") for i in range(runner.AGAIN_MAX + 1)]
        status, lines = self.outcome(runner.run_once, tests)
        self.assertEqual((status, lines[-1]), (1, f"0 passed, {len(tests)} failed, 0 skipped"))
        self.assertFalse(any("again and alone" in x for x in lines))

    def test_repeating_counts_failures_and_keeps_their_logs_alone(self):
        status, lines = self.outcome(runner.run_repeated, [self.failing("unit/rare", 1, tags=["alone"]), self.shell("unit/good", "exit 0")], 4)
        self.assertEqual(status, 1)
        table = {x.split()[-1]: x.split()[:2] for x in lines[lines.index("failed  of runs  longest  test"):]}
        self.assertEqual(table["unit/rare"], ["1", "4"])
        self.assertEqual(table["unit/good"], ["0", "4"])
        self.assertEqual([f for f in os.listdir(self.dir.name) if f.endswith(".log")], ["unit-rare.1.log"])
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_the_slowest_are_named_slowest_first(self):
        _, lines = self.outcome(runner.run_once, [self.shell("unit/quick", "exit 0"), self.shell("unit/slow", "sleep 0.3")])
        at = lines.index("slowest:")
        self.assertEqual([x.split()[2] for x in lines[at + 1:at + 3]], ["unit/slow", "unit/quick"])

    def test_load_ends_with_the_run(self):
        with runner.load(2):
            with open(f"/proc/self/task/{os.getpid()}/children") as f:
                spinning = f.read().split()
            self.assertEqual(len(spinning), 2)
        self.assertFalse(any(os.path.exists(f"/proc/{pid}") for pid in spinning))


if __name__ == "__main__":
    unittest.main()
