"""tags: limit=600

A second node brings producers, leaves, is killed whole and comes back; the run ends with the bytes of the one that had none.

LONG=1 does it at n_behind 1 and with several kills, too."""
import json
import os
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import unittest
from run_tools import Holds, LIMIT, ROLLCALL, Run, Task

STEPS = 12
HEAD = NODE = "worker cpu:0"    # both sides call theirs so


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node(Run):
    """A node's folder with its processes, as `rollcall agent --join` makes it; what a Run can be asked, it can too."""

    def __init__(self, task, run, port, name="b", token=None, extra=(), env=None):
        self.dir = task.path(f"nodes/{name}")
        self.log = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")
        args = [ROLLCALL, "agent", "--join", f"tcp://127.0.0.1:{port}", "--inferencers", "1", "--name", name, "--dir", self.dir,
                "--token-file", token or os.path.join(run.dir, "sock/join"), "--threads", "1", "--wait", str(LIMIT), *extra]
        self.process = subprocess.Popen(args, stdout=self.log, stderr=self.errors, start_new_session=True,
                                        env=dict(os.environ, **(env or {})))


class Nodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = 0

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def start(self, *extra, env=None, **settings):
        type(self).n += 1
        run = Run(self.task, f"run-{self.n}", self.task.run_file(**settings), ["--max-steps", str(STEPS), *extra], env=env)
        self.addCleanup(run.kill)
        return run

    def node(self, run, port, **kinds):
        self.until(run, None, "the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")))
        node = Node(self.task, run, port, **kinds)
        self.addCleanup(node.kill)
        return node

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(run.processes(), {})
        return run.weights(STEPS), run.ledger()

    def until(self, run, node, what, condition):
        end = time.monotonic() + LIMIT
        while not (got := condition()):
            if time.monotonic() > end or run.process.poll() is not None:
                self.fail(f"not so in time: {what}\n{run.logs()}" + (f"\n======== node\n{node.logs()}" if node else ""))
            time.sleep(0.005)
        return got

    def phases(self, run):
        done = run.ctl("status", "--json")
        return {p["name"]: p["phase"] for p in json.loads(done.stdout)["processes"]} if done.returncode == 0 else {}

    def query(self, run, text):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return db.execute(text).fetchall()

    def events(self, run):
        return [text for text, in self.query(run, "select text from event where kind = 'node'")]

    def head_held(self, run, node, holds, point, last=None):
        """The head's worker goes on from where it is held (last) and is held at point."""
        holds.arm(HEAD, point)
        if last:
            holds.release(HEAD, *last)
        return point, self.until(run, node, f"the head's worker is {point}", lambda: holds.held(HEAD, point))

    def head_samples_alone_no_more(self, run, node, holds, last):
        """Weights are shared and the head's worker is held with its first items of them: the others are the node's."""
        last = self.head_held(run, node, holds, "publishing", last)
        return self.head_held(run, node, holds, "generating", last)

    def node_has_sampled(self, run, node):
        """All items of the newest version but the two that the held worker has."""
        def done():
            (n,), = self.query(run, "select count(*) from item where weight_version = (select max(weight_version) from item) and fate <> 0")
            return n == 6
        self.until(run, node, "the node has sampled what is there", done)

    def test_a_node_comes_leaves_is_killed_and_returns_and_the_bytes_are_the_same(self):
        settings = dict(inference_microbatch_size=2, slow_s=1, heartbeat_s=0.1)
        plain = self.finish(self.start(**settings))
        port, holds, node_holds = free_port(), Holds(self.task.path("holds")), Holds(self.task.path("node-holds"))
        holds.arm(HEAD, "generating")
        run = self.start("--listen", f"127.0.0.1:{port}", env={"RC_TEST_HOLD": holds.dir}, **settings)
        node = self.node(run, port)
        worker_there = lambda: "b/worker cpu:0" in self.phases(run) and self.phases(run)["b/worker cpu:0"] == "waiting"
        last = "generating", self.until(run, node, "the head samples", lambda: holds.held(HEAD, "generating"))
        self.until(run, node, "the node's worker has loaded", worker_there)
        last = self.head_samples_alone_no_more(run, node, holds, last)
        self.node_has_sampled(run, node)

        node.process.send_signal(signal.SIGTERM)    # it leaves
        self.assertEqual(node.process.wait(LIMIT), 0, node.logs())
        self.assertEqual(node.processes(), {})
        self.until(run, node, "the journal says that it has left", lambda: any("has gone" in e for e in self.events(run)))
        self.assertFalse([p for p in self.phases(run) if p.startswith("b/")])

        node_holds.arm(NODE, "generating")          # it comes back, and is killed with items it has not sampled
        node = self.node(run, port, env={"RC_TEST_HOLD": node_holds.dir})
        self.until(run, node, "the node's worker has loaded", worker_there)
        last = self.head_samples_alone_no_more(run, node, holds, last)
        self.until(run, node, "the node has items", lambda: node_holds.held(NODE, "generating"))
        node.kill()
        self.until(run, node, "its loss is shown", lambda: self.phases(run).get("b/agent") == "lost")
        self.until(run, node, "the journal says that it is lost", lambda: any("no sign of life" in e for e in self.events(run)))

        node = self.node(run, port)                 # and back again, until the end
        self.until(run, node, "the node's worker has loaded", worker_there)
        last = self.head_samples_alone_no_more(run, node, holds, last)
        self.node_has_sampled(run, node)
        holds.release(HEAD, *last)
        self.assertEqual(plain, self.finish(run), run.logs() + node.logs())
        self.assertEqual(node.process.wait(LIMIT), 0, node.logs())
        self.assertEqual(node.processes(), {})


if __name__ == "__main__":
    unittest.main()
