"""How tests/runner.py treats tests that pass, fail, fail once, or are skipped."""
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import runner

# Fails until the given number have run.
FAILS_FIRST = "f=$1; echo ran >>$f; [ $(wc -l <$f) -gt $2 ] || { echo 'Assertion went wrong'; exit 1; }"


def open_lines(path):
    with open(path) as f:
        return f.read().split()


def alive(pid):
    """Is the process there, and no zombie that nobody has waited for?"""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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

    def test_one_that_fails_once_fails_the_run_and_its_first_log_is_kept(self):
        status, lines = self.outcome(runner.run_once, [self.failing("unit/now_and_then", 1), self.shell("unit/good", "exit 0"),
                                                       self.shell("unit/absent", "echo no such device; exit 77")])
        self.assertEqual(status, 1, lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")
        flaky = [x for x in lines if x.startswith("flaky   unit/now_and_then: ")]
        self.assertEqual(len(flaky), 1, lines)
        self.assertIn("unit-now_and_then.first.log", flaky[0])
        self.assertIn("FAILED  unit/now_and_then", lines)
        self.assertIn("went wrong", self.log("unit-now_and_then.first.log"))
        self.assertEqual(self.log("unit-now_and_then.log"), "")

    def test_one_in_quarantine_by_name_fails_no_run_unless_it_fails_twice(self):
        was = runner.QUARANTINE
        self.addCleanup(setattr, runner, "QUARANTINE", was)
        runner.QUARANTINE = os.path.join(self.dir.name, "README.md")
        with open(runner.QUARANTINE, "w") as f:
            f.write("# x\n| `unit/bad` | not this table |\n\n## Quarantine\n\n| test | why |\n|---|---|\n"
                    "| `unit/now_and_then` | a port is taken |\n\n## More\n\n| `unit/good` | nor this |\n")
        status, lines = self.outcome(runner.run_once, [self.failing("unit/now_and_then", 1), self.shell("unit/good", "exit 0")])
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"), lines)
        self.assertEqual(sum("; in quarantine: a port is taken" in x for x in lines), 1, lines)
        status, lines = self.outcome(runner.run_once, [self.shell("unit/now_and_then", "exit 1"), self.shell("unit/good", "exit 0")])
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"), lines)

    def test_a_signal_ends_builds_and_tests_and_what_has_left_their_sessions(self):
        pids = os.path.join(self.dir.name, "pids")
        sleeper = f"setsid sh -c 'echo $$ >>{pids}; exec sleep 600' & echo $$ >>{pids}; exec sleep 600"
        os.mkdir(os.path.join(self.dir.name, "bin"))
        with open(os.path.join(self.dir.name, "bin", "cmake"), "w") as f:
            f.write(f"#!/bin/sh\n{sleeper}\n")
        os.chmod(f.name, 0o755)
        env = dict(os.environ, PATH=f"{self.dir.name}/bin:{os.environ['PATH']}", SLEEPER=sleeper)
        begin = f"import os, sys\nsys.path.insert(0, {os.path.dirname(runner.__file__)!r})\nimport runner\nrunner.LOGS = {self.dir.name!r}\nrunner.stop_with_signals()\n"
        for number, call in ((signal.SIGTERM, "runner.run_once([runner.Test('unit/long', ['sh', '-c', os.environ['SLEEPER']])])"),
                             (signal.SIGINT, "runner.build('release')"), (signal.SIGHUP, "runner.build('release')")):
            open(pids, "w").close()
            p = subprocess.Popen([sys.executable, "-c", begin + call], env=env, stdout=subprocess.PIPE, text=True)
            end = time.monotonic() + 60
            while len(open_lines(pids)) < 2:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            p.send_signal(number)
            out = p.communicate(timeout=60)[0]
            self.assertEqual((p.returncode, out.splitlines()[-1]), (128 + number, f"stopped by {number.name}"), out)
            self.assertFalse([pid for pid in open_lines(pids) if alive(pid)], call)

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
        self.assertTrue(any(x.startswith("flaky   unit/needs_peace, again and alone") for x in lines), lines)

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
