"""tags: limit=600

A second node brings producers, leaves, is killed whole and comes back; the run ends with the bytes of the one that had none.

LONG=1 does it at n_behind 1 and with several kills, too."""
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
import unittest
from run_tools import Holds, LIMIT, ROLLCALL, ROOT, Run, RunCase, built, free_port, written
from tiny_model import head_add

STEPS = 12
DRIVER = os.path.join(ROOT, "build", "release", "tests", "tui_screenshot")    # a terminal: waits for texts, presses keys
HEAD = NODE = "worker cpu:0"    # both sides use this name


def gate_log(run):
    path = os.path.join(run.dir, "logs", "gate.log")
    if not os.path.exists(path):
        return ""
    with open(path, errors="replace") as f:
        return f.read()


def open_text(path):
    with open(path) as f:
        return f.read()


def ended(s):
    """Has the other side closed this connection? Earlier data from it are discarded."""
    s.setblocking(False)
    try:
        while s.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


class Node(Run):
    """A node's folder with its processes, as `rollcall agent --join` makes it; what a Run can be asked, it can too."""

    def __init__(self, task, run, port, name="b", folder=None, token=None, extra=(), env=None, hidden=None, host="127.0.0.1", prefix=(), more=""):
        """hidden: a folder that the node does not see, as on another host (a mount namespace). prefix: words before the command.
        more: further addresses, each after a comma."""
        self.dir = task.path(f"nodes/{folder or name}")
        self.token = os.path.join(self.dir, "sock/join")
        self.log = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")
        args = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none '{hidden}' && exec \"$@\"", "sh"] if hidden else [*prefix]
        args += [ROLLCALL, "agent", "--join", f"tcp://{host}:{port}{more}", "--inferencers", "1", "--name", name, "--dir", self.dir,
                "--token-file", token or os.path.join(run.dir, "sock/join"), "--threads", "1", "--wait", str(LIMIT), *extra]
        self.process = subprocess.Popen(args, stdout=self.log, stderr=self.errors, start_new_session=True,
                                        env=dict(os.environ, **(env or {})))


class Speaker:
    """A node that says what it is told to (node_speak.c)."""

    def __init__(self, case, port, token, name, id_digit):
        self.case, self.name, self.id, self.hash = case, name, id_digit * 32, ""
        self.process = subprocess.Popen([built("node_speak"), f"127.0.0.1:{port}", token], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        case.addCleanup(self.close)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(LIMIT)

    def say(self, t, **fields):
        self.process.stdin.write(json.dumps(dict(fields, t=t)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def refused(self, words, t, **fields):
        answer = self.say(t, **fields)
        self.case.assertIn("refused", answer, (t, fields))
        self.case.assertIn(words, answer["reason"])

    def join(self):
        self.hash = self.say("join", node=self.name, id=self.id, host="wrong", device="cpu", producers=1)["hash"]

    def beat(self, **more):
        return self.say("node", node=self.name, id=self.id, host="wrong", start=1, hash=self.hash, processes=[], **more)

    def work(self, **more):
        return self.say("work", **dict(dict(name=f"{self.name}/worker cpu:0", start=1, incarnation=1, step=0, version=0, made=0, produces=True,
                                            consumes=False, items=0, busy=False, n_row=64), **more))

    def group(self, item, **wrong):
        """A group of item that is right but for what is wrong."""
        array = lambda kind, *v: {"bytes": struct.pack(f"<{len(v)}{kind}", *v).hex()}
        n = wrong.pop("n_sample", 4)
        sample = dict(dict(n_tok=2, finish=0, score=1, reward=1.0, format_acc=1.0, ans_acc=1.0, reason="", text="ab"), **wrong.pop("sample", {}))
        ids, logp = wrong.pop("ids", [97] * 2 * n), wrong.pop("logps", [-1.0] * 2 * n)
        return dict(dict(incarnation=1, item=item["item"], row=item["row"], rollout_step=0, version=0, made=0, temperature=1.0, top_p=1.0, top_k=0,
                         max_new_tok=12, prompt=array("i", 1, 2), token=array("i", *ids), logp=array("f", *logp), samples=[sample] * n), **wrong)


class Nodes(RunCase):
    def start(self, *extra, **how):
        return super().start("--max-steps", str(STEPS), *extra, **how)

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

    def events(self, run):
        return [text for text, in self.query(run, "select text from event where kind = 'node'")]

    def head_held(self, run, node, holds, point, last=None):
        """Let the head's worker continue from where it is held (last) until it is held at point."""
        holds.arm(HEAD, point)
        if last:
            holds.release(HEAD, *last)
        return point, self.until(run, node, f"the head's worker is {point}", lambda: holds.held(HEAD, point))

    def head_samples_alone_no_more(self, run, node, holds, last):
        """Weights are shared and the head's worker is held with its first items of them: the others are the node's."""
        last = self.head_held(run, node, holds, "publishing", last)
        return self.head_held(run, node, holds, "generating", last)

    def node_has_sampled(self, run, node):
        """All items of the newest version except the two that the held worker has."""
        def done():
            (n,), = self.query(run, "select count(*) from item where weight_version = (select max(weight_version) from item) and fate <> 0")
            return n == 6
        self.until(run, node, "the node has sampled what is there", done)

    def test_a_node_comes_leaves_is_killed_and_returns_and_the_bytes_are_the_same(self):
        settings = dict(inference_microbatch_size=2, slow_s=1, heartbeat_s=0.1)
        plain = self.finish(self.start(**settings))
        port, lent_port, holds, node_holds = free_port(), free_port(), Holds(self.task.path("holds")), Holds(self.task.path("node-holds"))
        holds.arm(HEAD, "generating")
        with open(self.task.path("train.jsonl")) as f:    # in two files, which the node gets in their order
            lines = f.readlines()
        for name, part in (("part-b.jsonl", lines[:40]), ("part-c.jsonl", lines[40:])):
            with open(self.task.path(name), "w") as f:
                f.writelines(part)
        run = self.start("--listen", f"127.0.0.1:{port}", "--listen-lent", f"127.0.0.1:{lent_port}", env={"RC_TEST_HOLD": holds.dir},
                         dataset=self.task.path("part-*.jsonl"), **settings)
        self.until(run, None, "the head samples", lambda: holds.held(HEAD, "generating"))
        self.assertEqual(run.ctl("set", "slow_s=15").returncode, 0)    # time for what it says, however busy this machine is
        self.speaks_wrongly(run, lent_port, port)
        self.assertEqual(run.ctl("set", "slow_s=1").returncode, 0)
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
        self.assertEqual([p for p in self.phases(run) if p.startswith("c/")], [])    # it has only asked to join, so it is not lost
        self.until(run, node, "the journal says that it is lost", lambda: any("no sign of life" in e for e in self.events(run)))

        lent = os.path.join(run.dir, "sock/join-lent")
        node = self.node(run, lent_port, token=lent)    # and back again until the end, as a machine that may only sample
        self.until(run, node, "the node's worker has loaded", worker_there)
        last = self.head_samples_alone_no_more(run, node, holds, last)
        self.node_has_sampled(run, node)
        holds.release(HEAD, *last)
        self.assertEqual(plain, self.finish(run), run.logs() + node.logs())
        self.assertEqual(node.process.wait(LIMIT), 0, node.logs())
        self.assertEqual(node.processes(), {})
        with open(os.path.join(node.dir, "logs", "uplink.log")) as f:
            log = f.read()
        sent = [float(a) / max(float(b), 0.001) for a, b in re.findall(r"are here mib=([\d.]+) wire_mib=([\d.]+)", log)]
        self.assertGreater(max(sent, default=0), 1.5, log)    # fp32 weights as differences
        self.assertLess(sent[0], 1.01, log)                   # the first one is whole
        self.assertNotIn("in pieces", log)
        self.assertIn(("perf/nodes_delta_ratio",), self.query(run, "select name from series"))
        self.assertIn(("rollout/lent_refused",), self.query(run, "select name from series"))
        self.assertNotIn("not taken by the controller", node.logs())

    def speaks_wrongly(self, run, port, nodes_port):
        """A lent node asks for items, and then for all that it has no right to; the head's worker is held with the others. It leaves."""
        token = os.path.join(run.dir, "sock/join-lent")
        self.until(run, None, "there is a token for lent machines", lambda: os.path.exists(token))
        w, other = Speaker(self, port, token, "model", "a"), Speaker(self, port, token, "model", "b")    # a name like those of files
        node = Speaker(self, nodes_port, os.path.join(run.dir, "sock/join"), "c", "c")
        w.join()
        node.join()    # and is not heard again
        w.refused("not known to be of node", "group", **w.group({"item": 0, "row": 0}))    # it has not said yet who it is
        self.assertEqual(w.beat()["order"], "go")
        self.assertIn("data", node.say("file", name="model/config.json", offset=0, n_bytes=16))
        self.assertIn("is not on node 'model'", w.work(consumes=True, rank=0)["reason"])    # it wants to be a trainer
        given = w.work(consumes=True, items=-1000)                                      # again, with room for a thousand more
        self.assertEqual((given.get("kind"), len(given.get("items", ()))), ("items", 2), given)
        mine, theirs = given["items"][0], {"item": 0, "row": self.query(run, "select prompt_row from item where item = 0")[0][0]}
        w.refused("not been given to this node but to worker cpu:0", "group", **w.group(theirs))
        w.refused("not been given to this node but to worker cpu:0", "stopped", item=0, version=0, made=0, n_tok=10**6)
        w.refused("not been given to this node", "group", **w.group({"item": 7, "row": 0}))    # nor to anybody
        for words, wrong in (("instead of 4", dict(n_sample=5)), ("none of the tokenizer", dict(ids=[10**6] * 8)), ("log-prob", dict(logps=[float("nan")] * 8)),
                             ("log-prob", dict(logps=[1.0] * 8)), ("reward", dict(sample=dict(reward=1e300))), ("of prompt", dict(row=mine["row"] + 1)),
                             ("temperature", dict(temperature=0.5)), ("does not fit", dict(logp={"bytes": ""})), ("sample 0", dict(sample=dict(finish=9))),
                             ("sample 0", dict(sample=dict(n_tok=10**9)))):
            w.refused(words, "group", **w.group(mine, **wrong))
        for item, wrong in ((mine, dict(version=1)), (dict(mine, item=10**9), {})):
            w.refused("is not wanted", "group", **w.group(item, **wrong))
        self.assertFalse(any("(16 refused so far)" in e for e in self.events(run)), self.events(run))
        w.refused("is not wanted", "stopped", item=10**9, version=0, made=0, n_tok=10)
        self.assertTrue(any("(16 refused so far)" in e for e in self.events(run)), self.events(run))    # all of them are counted
        done = dict(name="model/worker cpu:0", task=given["task"], incarnation=1, step=1, rank=0, round=0)
        w.refused("is not given a 'train'", "done", kind="train", ok=True, metrics={}, **done)
        w.refused("the run does not", "done", kind="load", ok=False, error="no", **done)
        w.refused("not known to be of node 'b'", "publish", topic="sample", body={"node": "b", "time": 0, "figures": {}})
        w.refused("token for sampling only", "fetch", items=[0])
        other.refused("has already joined", "node", node="model", id=other.id, host="wrong", start=1, hash=w.hash, processes=[])
        other.refused("not known to be of node 'model'", "work", name="model/worker cpu:0", start=2, incarnation=1, step=0, version=0, made=0,
                      produces=True, consumes=False, items=0, busy=False)
        self.assertEqual(w.beat(leaving=True, reason="enough")["order"], "stop")
        w.refused("not known to be of node", "group", **w.group(mine))    # its items are given again
        self.assertTrue(any("what lent node 'model' sends for item 0 is refused" in e for e in self.events(run)), self.events(run))

    def tokens_are_one(self, run, node, old):
        now = open_text(os.path.join(run.dir, "sock/join"))
        self.assertEqual(open_text(node.token), now)
        self.assertNotEqual(open_text(old), now)

    def test_commands_reach_a_node_killed_processes_return_and_strangers_are_refused(self):
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", slow_s=15, heartbeat_s=0.1)    # present, however busy this machine is
        wrong = self.task.path("wrong.token")
        with open(os.open(wrong, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("0123456789abcdef" * 4 + "\n")
        self.until(run, None, "the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")))
        copy = shutil.copy(os.path.join(run.dir, "sock/join"), self.task.path("copy.token"))
        node = self.node(run, port, folder="b1", token=copy)
        stranger = Node(self.task, run, port, name="stranger", token=wrong)
        self.addCleanup(stranger.kill)
        there = lambda: self.phases(run).get("b/worker cpu:0") in ("waiting", "generating", "scoring", "publishing")
        self.until(run, node, "the node's worker is there", there)
        status = json.loads(run.ctl("status", "--json").stdout)
        of_node = {p["name"]: p for p in status["processes"] if p.get("node") == "b"}
        self.assertEqual(set(of_node), {"b/keeper", "b/agent", "b/uplink", "b/scorer", "b/worker cpu:0"})
        self.assertIn("plays", of_node["b/worker cpu:0"])

        namesake = self.node(run, port, folder="b2")
        self.assertEqual(namesake.process.wait(LIMIT), 1, namesake.logs())
        self.assertIn("a node called 'b' has already joined", written(namesake.errors))

        pid = node.processes()["worker cpu:0"]
        done = run.ctl("restart", "b/worker cpu:0")
        self.assertEqual(done.returncode, 0, done.stderr + node.logs())
        self.assertNotEqual(node.processes()["worker cpu:0"], pid)
        self.assertEqual(run.ctl("restart", "b/nobody").returncode, 1)

        done = run.ctl("rotate-token", "--overlap", "600")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 of 1 nodes have it; the old one is accepted until", done.stdout)
        self.tokens_are_one(run, node, copy)
        node.kill()    # it comes back with the copy of the old token that it was started with
        with open(os.path.join(node.dir, "lock"), "r+b") as lock:    # as a killed process does until the kernel has taken it apart
            fcntl.lockf(lock, fcntl.LOCK_EX)
            node = self.node(run, port, folder="b1", token=copy)
            self.until(run, node, "it waits for the killed one", lambda: "waiting for the node in this folder to end" in written(node.errors))
        self.until(run, node, "its processes are back", lambda: {"keeper", "agent", "uplink", "scorer", "worker cpu:0"} <= set(node.processes()))
        self.until(run, node, "the node is back", there)
        self.tokens_are_one(run, node, copy)
        for side, name in ((node, "uplink"), (node, "agent"), (node, "keeper"), (node, "scorer"), (run, "gate"), (run, "agent")):
            pid = side.processes()[name]
            os.kill(pid, signal.SIGKILL)
            self.until(run, node, f"{name} lives again", lambda: side.processes().get(name, pid) != pid)
            self.until(run, node, f"the node is there again after {name} was killed", there)
        for i, (side, name) in enumerate(((run, "gate"), (node, "uplink"), (run, "gate"))):    # while a token is replaced; the ones before end at once
            token = open_text(os.path.join(run.dir, "sock/join"))
            words = ["rotate-token", "--overlap", "600", "--id", f"an id of several words {i}"]
            command = subprocess.Popen([ROLLCALL, "ctl", "--run", run.dir, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            time.sleep(random.uniform(0, 0.05))
            pid = side.processes()[name]
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            said, _ = command.communicate(timeout=LIMIT)
            self.assertEqual(command.returncode, 0, said)
            if name == "gate" and "0 of 0 nodes" in said:    # a new gate knows only nodes that it has heard: it gives them 2 s to come back,
                self.assertGreater(time.monotonic() - killed, 2)    # and then says how things stand
            elif name != "gate":    # it knows the node, and waits for it
                self.assertIn("of 1 nodes", said)
            self.assertNotEqual(open_text(os.path.join(run.dir, "sock/join")), token)
            self.until(run, node, f"{name} lives again", lambda: side.processes().get(name, pid) != pid)
            self.until(run, node, "the node has the new token", lambda: open_text(node.token) == open_text(os.path.join(run.dir, "sock/join")))
            self.until(run, node, f"the node is there again after {name} was killed", there)
            token = open_text(os.path.join(run.dir, "sock/join"))
            self.until(run, node, "the gate has heard it", lambda: "1 of 1 nodes have it" in run.ctl(*words).stdout)    # the same command: it has been carried out
            self.assertEqual(open_text(os.path.join(run.dir, "sock/join")), token)
        token = open_text(os.path.join(run.dir, "sock/join"))
        for i in range(3):    # carried out long ago, whoever carried them out
            again = run.ctl("rotate-token", "--overlap", "600", "--id", f"an id of several words {i}")
            self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(open_text(os.path.join(run.dir, "sock/join")), token)
        done = run.ctl("rotate-token", "--overlap", "3")    # the node is present: the answer comes when it has the token, or after 10 s
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "1 of 1 nodes have (it|the new one)", run.logs() + node.logs())    # it may come after the overlap
        self.until(run, node, "the journal says that the old token has ended",
                   lambda: any("the old join token is no longer accepted" in e for e in self.events(run)))
        self.until(run, node, "the last of them has ended whatever the clock will say",
                   lambda: open_text(os.path.join(run.dir, "sock/join.before")).split()[1] == "0.000")
        late = Node(self.task, run, port, name="late", token=copy)
        self.addCleanup(late.kill)
        self.assertEqual(late.process.wait(LIMIT), 1, late.logs())
        self.assertIn("or it has been replaced (rollcall ctl rotate-token); copy the run's sock/join here again", written(late.errors))
        step = run.step()
        self.until(run, node, "the run goes on", lambda: run.step() >= step + 2)

        self.assertEqual(node.ctl("pause").returncode, 0)    # a command may enter by any agent
        self.assertEqual(self.query(run, "select count(*) from event where kind = 'state' and text like 'paused%'"), [(1,)])
        self.assertIn(": paused", node.ctl("status").stdout)
        self.assertEqual(run.ctl("resume").returncode, 0)

        self.assertEqual(run.ctl("dismiss", "b").returncode, 0)
        self.assertEqual(node.process.wait(LIMIT), 0, node.logs())
        self.assertRegex(written(node.errors), "node 'b' has ended: dismissed by .*ctl\n$")    # and not with the run, which goes on
        self.assertEqual(node.processes(), {})
        self.until(run, node, "it is shown no more", lambda: not [p for p in self.phases(run) if p.startswith("b/")])
        self.assertEqual(run.ctl("dismiss", "b").returncode, 1)
        told = "\n".join(text for text, in self.query(run, "select text from event where kind = 'command'"))
        for words in ("'b/worker cpu:0' (pid", "node 'b' is dismissed"):
            self.assertIn(words, told)

        self.assertEqual(stranger.process.wait(LIMIT), 1, stranger.logs())
        self.assertIn("does not accept the join token", written(stranger.errors))
        self.assertFalse(os.path.exists(os.path.join(stranger.dir, "run.yaml")))
        self.assertEqual(run.ctl("stop").returncode, 0)
        self.assertEqual(run.wait()[0], 3)

    def test_a_node_whose_token_has_ended_says_so_and_ends_after_its_limit(self):
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", heartbeat_s=0.1, slow_s=0.5, save_interval=0)
        self.until(run, None, "the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")))
        node = self.node(run, port, extra=("--wait", "10"), token=shutil.copy(os.path.join(run.dir, "sock/join"), self.task.path("ended.token")))
        self.until(run, node, "the node is present", lambda: self.phases(run).get("b/worker cpu:0"))
        uplink = node.processes()["uplink"]
        os.kill(uplink, signal.SIGSTOP)    # so that it hears nothing of the new token
        self.until(run, node, "the head has lost it", lambda: self.phases(run).get("b/agent") == "lost")
        ctl = subprocess.Popen([ROLLCALL, "ctl", "--run", run.dir, "rotate-token", "--overlap", "0"], stdout=subprocess.DEVNULL)
        self.until(run, node, "the journal says that the old token has ended",    # while ctl waits for the node
                   lambda: self.query(run, "select 1 from event where text like '%the old one is no longer accepted'"))
        os.kill(uplink, signal.SIGCONT)
        self.assertEqual(node.process.wait(LIMIT), 1, node.logs())
        self.assertIn("does not accept the join token of this machine", written(node.errors).splitlines()[-1])
        with open(os.path.join(node.dir, "logs/uplink.log")) as f:
            self.assertIn("does not accept the join token", f.read())
        self.assertEqual(node.processes(), {})
        self.assertEqual(ctl.wait(LIMIT), 0)
        self.assertEqual(run.ctl("stop").returncode, 0)
        self.assertEqual(run.wait()[0], 3)

    def test_a_machine_with_the_token_for_sampling_only_samples_and_cannot_command(self):
        port, lent_port = free_port(), free_port()
        model = shutil.copytree(self.task.path("model"), self.task.path("own-head"))
        hook = self.task.path("webhook")
        with open(hook, "w") as f:
            f.write("http://127.0.0.1:1/alerts\n")
        head_add(model)    # this node has no files of weights, from which it could see that the head is not the embedding
        run = self.start("--listen", f"127.0.0.1:{port}", "--listen-lent", f"127.0.0.1:{lent_port}", "--max-steps", "100000", slow_s=2,
                         heartbeat_s=0.1, model=model, alert_webhook_file=hook, tensorboard=True)
        token, lent = os.path.join(run.dir, "sock/join"), os.path.join(run.dir, "sock/join-lent")
        self.until(run, None, "both tokens are there", lambda: os.path.exists(token) and os.path.exists(lent))
        self.assertNotEqual(open_text(token), open_text(lent))
        copy, used = (shutil.copy(lent, self.task.path(name)) for name in ("lent.token", "used.token"))
        node = self.node(run, lent_port, token=used)
        self.until(run, node, "the lent node's worker is there", lambda: "b/worker cpu:0" in self.phases(run))
        self.until(run, node, "it takes work", lambda: self.phases(run).get("b/worker cpu:0") in ("waiting", "generating", "scoring"))

        self.assertEqual(sorted(name for name in self.phases(run) if "export" in name), ["export tensorboard", "export webhook"])    # the head's, none of b

        with open(used, "w") as f:    # brought by mistake, and then the right one again
            f.write("0" * 64)
        self.until(run, node, "it keeps a token that was brought", lambda: open_text(node.token).strip() == "0" * 64)
        shutil.copy(lent, used)
        self.until(run, node, "it keeps the right token again", lambda: open_text(node.token) == open_text(lent))

        def ask(to, file, *words):
            return subprocess.run([ROLLCALL, "ctl", "--connect", f"127.0.0.1:{to}", "--token-file", file, "--limit", "30", *words],
                                  capture_output=True, text=True, timeout=LIMIT)
        for words in (("pause",), ("stop",), ("set", "learning_rate=1"), ("dismiss", "b"), ("restart", "worker cpu:0"), ("checkpoint",), ("events",),
                      ("checkpoints",)):
            done = ask(lent_port, lent, *words)
            self.assertEqual(done.returncode, 1, (words, done.stdout, done.stderr))
            self.assertIn("the token for sampling only", done.stderr, words)
        done = node.ctl("pause")    # nor does a command get through by the node's own agent
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("the token for sampling only", done.stderr, run.logs() + node.logs())
        self.assertEqual(ask(lent_port, lent, "status").returncode, 0)
        self.assertEqual(self.query(run, "select count(*) from event where kind = 'command'"), [(0,)])
        nodes_token = open_text(token)
        done = run.ctl("rotate-token", "lent", "--overlap", "0")    # nobody is told
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the old one is no longer accepted", done.stdout)
        self.assertEqual(open_text(token), nodes_token)
        self.assertNotEqual(open_text(lent), open_text(copy))
        self.assertEqual(run.ctl("rotate-token", "lent").returncode, 0)    # at once: connections of the first one are still there
        self.assertEqual(open_text(node.token), open_text(copy))           # and told nothing
        done = ask(lent_port, copy, "status")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("does not accept the join token of this machine", done.stderr)
        self.until(run, node, "the node says what is wrong",
                   lambda: "copy the run's sock/join here again" in open_text(os.path.join(node.dir, "logs", "uplink.log")))
        self.until(run, node, "the head has lost it", lambda: self.phases(run).get("b/agent") == "lost")
        shutil.copy(lent, used)
        self.until(run, node, "the node is back", lambda: self.phases(run).get("b/worker cpu:0") in ("waiting", "generating", "scoring"))
        step = run.step()
        self.until(run, node, "the run goes on", lambda: run.step() >= step + 2)
        stranger = Node(self.task, run, port, name="stranger", token=lent)    # the other door does not know this token
        self.addCleanup(stranger.kill)
        impostor = self.node(run, port, folder="b9", token=token)    # and a name with the other right is not taken over
        self.assertEqual(impostor.process.wait(LIMIT), 1, impostor.logs())
        self.assertIn("has joined with another token", written(impostor.errors))
        self.assertEqual(ask(port, token, "pause").returncode, 0)
        self.assertEqual(run.ctl("rotate-token", "lent").returncode, 0)
        old, gate = open_text(lent), run.processes()["gate"]
        os.unlink(lent)    # with the file the old token goes, too, whose time is not over
        os.kill(gate, signal.SIGKILL)
        self.until(run, node, "there is a new token", lambda: os.path.exists(lent) and open_text(lent) != old)
        self.assertFalse(os.path.exists(lent + ".before"))
        self.until(run, node, "the gate lives again", lambda: ask(port, token, "status").returncode == 0)
        self.assertEqual(ask(port, token, "stop").returncode, 0)
        self.assertEqual(run.wait()[0], 3)
        self.assertNotEqual(stranger.process.poll(), 0)

    def client_hello(self):
        """The first bytes of a TLS client on this host."""
        out, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="rollcall").do_handshake()
        except ssl.SSLWantReadError:
            return out.read()

    def test_hundreds_of_strangers_who_say_nothing_or_half_keep_no_node_out(self):
        port, files = free_port(), 128
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", files=files, slow_s=1, heartbeat_s=0.1)
        self.until(run, None, "the gate listens", lambda: "nodes join at" in gate_log(run))
        hello, strangers = self.client_hello(), []
        for i in range(600):
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
            self.addCleanup(strangers[-1].close)
            if i % 2:
                strangers[-1].sendall(hello)
        gate = run.processes()["gate"]
        opened = lambda: len(os.listdir(f"/proc/{gate}/fd"))
        self.assertLess(opened(), files)
        node = self.node(run, port)
        self.until(run, node, "the node's worker is there", lambda: "b/worker cpu:0" in self.phases(run))
        step = run.step()
        self.until(run, node, "the run goes on", lambda: run.step() >= step + 2)
        for s in strangers:    # each is sent away by and by: the crowd at once, the rest when their time has passed
            self.until(run, node, "a stranger is sent away", lambda: ended(s))
        self.assertEqual(run.processes()["gate"], gate)
        self.assertLess(opened(), files)
        self.assertRegex(gate_log(run), r"connections? to '127\.0\.0\.1:\d+' (was|were) turned away, the last from 127\.0\.0\.1:\d+")
        self.assertNotIn("listens again", gate_log(run))
        self.assertEqual(run.ctl("stop").returncode, 0)
        self.assertEqual(run.wait()[0], 3)

    def gpu(self, name):
        """The environment in which a machine has one GPU of this name, of which nothing else is known."""
        path = self.task.path(name.replace(" ", "-"))
        with open(path, "w") as f:
            f.write(f"count 1\ngpu.0.name {name}\ngpu.0.temp 64\n")
        return {"RC_NVML_LIBRARY": built("libfake_nvml.so"), "FAKE_NVML": path}

    def pages_have_all(self, asker, n):
        """The state as a console asks for it, some nodes at a time, and as the gate does, which wants none of them."""
        names, at = [], 0
        while at < n:
            page = asker.say("status", fresh=False, **{"from": at, "limit": 64})
            nodes = [x["node"] for x in page["nodes"]]
            self.assertEqual((page["from"], page["to"], page["n_nodes"], len(nodes)), (at, min(at + 64, n), n, page["to"] - at))
            self.assertEqual({p["node"] for p in page["processes"] if "/" in p["name"]}, set(nodes))
            names, at = names + nodes, page["to"]
        self.assertEqual(len(set(names)), n)
        rest = asker.say("status", fresh=False, **{"from": 64})
        self.assertEqual((rest["to"], {p["node"] for p in rest["processes"] if "/" in p["name"]}), (n, set(names[64:])))
        none = asker.say("status", fresh=False, **{"from": 1024, "limit": 1})
        self.assertEqual((none["nodes"], none["to"], none["n_nodes"], [p["name"] for p in none["processes"] if "/" in p["name"]]), ([], n, n, []))
        self.assertIn("gate", [p["name"] for p in none["processes"]])

    def test_many_more_nodes_than_a_rack_holds_are_present_at_once(self):
        n = 1000 if os.environ.get("LONG") else 150
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", slow_s=60, stuck_s=120)
        token = os.path.join(run.dir, "sock/join")
        self.until(run, None, "the head has a join token", lambda: os.path.exists(token))
        crowd = subprocess.Popen([ROLLCALL, "simulate", "--join", f"tcp://127.0.0.1:{port}", "--token-file", token, "--nodes", str(n),
                                  "--seconds", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (crowd.poll() is None and crowd.kill(), crowd.wait(), crowd.stdout.close(), crowd.stderr.close()))
        line = crowd.stdout.readline()
        self.assertRegex(line, f"^{n} nodes are in, after ", line or crowd.stderr.read() + run.logs())
        seen = lambda: sum(name.endswith("/agent") and phase == "running" for name, phase in self.phases(run).items())
        self.until(run, None, f"the head's agent knows all {n}", lambda: seen() == n)
        self.pages_have_all(Speaker(self, port, token, "asker", "a"), n)
        step = run.step()
        run.wait_step(step + 2)    # and the run goes on
        self.assertEqual(seen(), n)
        crowd.send_signal(signal.SIGTERM)    # it leaves, and says what it has measured
        said, wrong = crowd.communicate(timeout=LIMIT)
        self.assertRegex(said, r"s: [1-9]\d* signs of life and [1-9]\d* requests for work per second; 0 were not answered\n"
                               r"work answered within [\d.]+ ms \(half\), [\d.]+ ms \(99 of 100\).*\nhead uses [\d.]+ cores", wrong)
        self.until(run, None, "none is left", lambda: not any(name.startswith("crowd-") for name in self.phases(run)))

    def test_each_side_tells_its_own_hosts_and_gpus_and_the_head_those_of_its_nodes_too(self):
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", heartbeat_s=0.1, slow_s=60, stuck_s=60,
                         env=self.gpu("NVIDIA H100"))
        node = self.node(run, port, env=self.gpu("NVIDIA H200"))

        def told(side, *names):
            def answer():
                done = side.ctl("status", "--json")
                status = json.loads(done.stdout) if done.returncode == 0 else {}
                whole = all("devices" in n for n in status.get("nodes", ()))    # a node's host is told before its devices
                return status if whole and all(status.get(name) for name in names) else None
            return self.until(run, node, f"{side.dir} reports {names}", answer)
        devices = lambda of: [(d["name"], d["what"], d["figures"]["temp_celsius"]) for d in of["devices"]]
        head = told(run, "devices", "nodes")
        self.assertEqual(devices(head), [("gpu 0", "NVIDIA H100", 64)])
        self.assertEqual([(n["node"], devices(n)) for n in head["nodes"]], [("b", [("gpu 0", "NVIDIA H200", 64)])])
        self.assertGreater(head["nodes"][0]["host"]["mem_total_bytes"], 0)
        text = self.until(run, node, "the head answers", lambda: run.ctl("status").stdout)
        for words in ("\nhost: processors", "\ngpu 0 NVIDIA H100: busy ?", "\nb/host: processors", "\nb/gpu 0 NVIDIA H200: busy ?"):
            self.assertIn(words, text)
        here = told(node, "devices", "step")    # the step is the head's, asked through the uplink
        self.assertEqual((devices(here), "nodes" in here), ([("gpu 0", "NVIDIA H200", 64)], False))
        for side, shown in ((run, ("wait:NVIDIA H100", "wait:NVIDIA H200")), (node, ("wait:NVIDIA H200",))):
            if os.path.exists(DRIVER):
                done = subprocess.run([DRIVER, self.task.path("screen.svg"), "140x50", "dark", "keys:2", *shown, "--", ROLLCALL, "console",
                                       side.dir], capture_output=True, text=True, timeout=LIMIT + 100)
                self.assertEqual(done.returncode, 0, done.stderr + run.logs() + node.logs())

    def test_what_agents_watch_by_can_be_changed_on_every_node(self):
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--max-steps", "100000", heartbeat_s=0.1, slow_s=1000, stuck_s=2000)
        node = self.node(run, port)
        self.until(run, node, "the node's worker samples", lambda: "b/worker cpu:0" in self.phases(run))
        pid = node.processes()[NODE]
        os.kill(pid, signal.SIGSTOP)
        self.assertEqual(run.ctl("set", "restart_stuck_s=0.1").returncode, 0)
        self.assertEqual(run.ctl("set", "slow_s=2").returncode, 0)
        self.until(run, node, "the stopped worker is started again", lambda: node.processes().get(NODE, pid) != pid)

    @unittest.skipUnless(os.environ.get("LONG"), "LONG=1: many random kills on both sides")
    def test_random_kills_on_both_sides_change_no_byte(self):
        rng = random.Random(int(os.environ.get("SEED", "1")))
        for settings in (dict(), dict(n_behind=1, train_batch_size=4, train_minibatch_size=4, filter_range=[0.1, 0.9], algo="DAPO"),
                         dict(num_inferencer=2, inference_batch_size=4, n_behind=1)):
            settings = dict(settings, inference_microbatch_size=2, slow_s=1, heartbeat_s=0.1, max_new_tokens=48)
            plain = self.finish(self.start(**settings))
            for _ in range(10):
                port = free_port()
                run = self.start("--listen", f"127.0.0.1:{port}", **settings)
                node = self.node(run, port)
                for _ in range(4):
                    time.sleep(rng.random())    # a random moment, not a wait for something
                    side = rng.choice((run, node))
                    alive = side.processes()
                    if run.process.poll() is None and alive:
                        try:
                            os.kill(alive[rng.choice(sorted(alive))], signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                self.assertEqual(plain, self.finish(run), f"{settings}{run.logs()}{node.logs()}")
                node.kill()


if __name__ == "__main__":
    unittest.main()
