"""Runs whose nodes are started over ssh; called by ssh.sh, which has made an sshd that is both of the hosts one and two."""
import json
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "integration"))
from run_tools import LIMIT, Run, RunCase, free_port    # noqa: E402

STEPS = 60


class Ssh(RunCase):
    settings = dict(inference_microbatch_size=2, slow_s=1, heartbeat_s=0.1, max_new_tokens=48)

    def nodes(self, run):
        done = run.ctl("status", "--json")
        if done.returncode != 0:
            return set()
        return {p["node"] for p in json.loads(done.stdout)["processes"] if p.get("node") and p["name"].endswith("worker cpu:0") and p["pid"]}

    def sessions(self):
        """The sshd processes of open connections, by the one that listens."""
        done = subprocess.run(["pgrep", "-P", os.environ["SSHD_PID"]], capture_output=True, text=True, timeout=LIMIT)
        return {int(pid) for pid in done.stdout.split()}

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
        return run.weights(STEPS), run.ledger()

    def test_nodes_come_over_ssh_return_when_a_connection_is_cut_and_the_bytes_are_the_same(self):
        plain = self.finish(self.start("--max-steps", str(STEPS), **self.settings))
        run = self.start("--max-steps", str(STEPS), "--hosts", "one,two", "--listen", f"0.0.0.0:{free_port()}", **self.settings)
        run.wait_step(1)
        self.assertEqual(run.ctl("pause", "step").returncode, 0)
        self.until("both hosts have a node", lambda: self.nodes(run) == {"one", "two"}, run)
        before = self.sessions()
        self.assertEqual(len(before), 2)
        os.kill(min(before), signal.SIGKILL)
        self.until("there are two connections again", lambda: len(self.sessions() - {min(before)}) == 2, run)
        self.until("both hosts have a node again", lambda: self.nodes(run) == {"one", "two"}, run)

        token = os.path.join(run.dir, "sock/join")
        with open(token) as f:
            old = f.read()
        done = run.ctl("rotate-token", "--overlap", "0")    # the head tells nobody: the nodes get the new one through ssh
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(token) as f:
            self.assertNotEqual(f.read(), old)
        self.until("the nodes were cut off", lambda: not self.nodes(run), run)
        self.until("both hosts have a node once more", lambda: self.nodes(run) == {"one", "two"}, run)
        self.assertEqual(run.ctl("resume").returncode, 0)
        self.assertEqual(plain, self.finish(run), run.logs())
        self.until("ssh has ended with the run", lambda: not self.sessions(), run)


if __name__ == "__main__":
    unittest.main()
