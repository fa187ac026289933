"""tags: limit=300

Who may only look at a run: questions are answered, commands refused with the way to the operator's socket."""
import grp
import json
import os
import pwd
import stat
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, RunCase


class Roles(RunCase):
    def start(self, *extra, **settings):
        run = super().start(*extra, **settings)
        run.wait_step(2)
        return run

    def mode(self, run, name):
        st = os.stat(os.path.join(run.dir, name))
        return oct(stat.S_IMODE(st.st_mode)), st.st_gid

    def test_the_view_answers_questions_and_refuses_commands(self):
        run = self.start()
        self.assertEqual(self.mode(run, "view")[0], "0o700")
        done = run.ctl("status", "--json", "--read-only")
        self.assertEqual(done.returncode, 0, done.stderr)
        status = json.loads(done.stdout)
        self.assertEqual(status["state"], "running")
        self.assertIn("worker cpu:0", {p["name"] for p in status["processes"]})
        self.assertIn("learning_rate", status["knobs"])
        done = run.ctl("events", "--read-only")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("running", done.stdout)
        for command in (["pause"], ["set", "lr=0.5"], ["stop"], ["restart", "worker cpu:0"], ["quarantine", "3"], ["checkpoint"]):
            done = run.ctl(*command, "--read-only")
            self.assertEqual((done.returncode, done.stdout), (1, ""), command)
            self.assertIn("only its owner can", done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertEqual(json.loads(run.ctl("status", "--json").stdout)["knobs"]["learning_rate"], 0.001)
        console = subprocess.Popen([ROLLCALL, "console", run.dir, "--batch", "--format", "jsonl", "--read-only"], stdout=subprocess.PIPE, text=True)
        step = next(json.loads(line) for line in console.stdout if '"step"' in line)    # telemetry comes by the view, too
        self.assertGreaterEqual(step["step"], 0)
        done = run.ctl("stop")
        self.assertEqual(done.returncode, 0, done.stderr)
        console.stdout.read()
        console.stdout.close()
        console.wait(LIMIT)

    def test_a_group_that_is_named_may_look_and_nobody_else(self):
        group = next((g for g in grp.getgrall() if g.gr_gid in [os.getegid(), *os.getgroups()] and g.gr_gid), None)
        other = pwd.getpwnam("nobody")
        if os.geteuid() == 0:    # then any group will do, and other users can be impersonated
            group = next(g for g in grp.getgrall() if g.gr_gid not in (0, other.pw_gid))
            os.chmod(self.task.dir, 0o755)
        elif not group:
            self.skipTest("we are in no group but root's")
        run = self.start("--view-group", group.gr_name)
        self.assertEqual(self.mode(run, "view"), ("0o2750", group.gr_gid))
        for name in ("view/view", "view/view-telemetry"):
            self.assertEqual(self.mode(run, name), ("0o660", group.gr_gid))
        self.assertEqual(self.mode(run, "sock")[0], "0o700")
        if os.geteuid() != 0:
            return

        def ctl(gid, *args):
            return subprocess.run([ROLLCALL, "ctl", "--run", run.dir, *args], capture_output=True, text=True, timeout=LIMIT, user=other.pw_uid,
                                  group=gid, extra_groups=[])

        try:
            done = ctl(group.gr_gid, "status", "--json")
        except PermissionError:
            self.skipTest("this program cannot be run by others from where it lies")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["state"], "running")
        done = ctl(group.gr_gid, "stop")
        self.assertEqual(done.returncode, 1)
        self.assertIn("only its owner can", done.stderr)
        done = ctl(other.pw_gid, "status", "--json")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("view_group", done.stderr)
        step = run.step()
        run.wait_step(step + 1)

    def test_a_group_that_is_not_there_is_named_before_anything_is_made(self):
        done = subprocess.run([ROLLCALL, "train", self.task.run_file(), "--batch", "--runs-dir", self.task.path("never"), "--view-group", "no-such-group"],
                              capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no-such-group", done.stderr)
        self.assertFalse(os.path.exists(self.task.path("never")))


if __name__ == "__main__":
    unittest.main()
