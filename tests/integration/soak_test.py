"""tags: long alone limit=7200

Kills and faults without end: processes are killed or stopped at random moments, the disk is full for a moment, the wall clock jumps, the
network to a node is cut, and the reward program answers poison and leaves processes behind. Each run ends in the bytes of one that had the
same poison and nothing else. KILLS=N: how many processes are killed altogether (1,000); SEED repeats the choices."""
import os
import random
import signal
import sys
import time
import unittest
from nodes_test import Node
from relay import HEAD, NODE, Relay
from run_tools import LIMIT, Run, Task, built, commands, free_port

KILLS = int(os.environ.get("KILLS", 1000))
KILLS_A_RUN = 25
STEPS = 60
PRELOAD = built("faults_preload.so")
SETTINGS = [dict(), dict(n_behind=1, train_batch_size=4, train_minibatch_size=4, algo="DAPO"),
            dict(num_inferencer=2, inference_batch_size=4),
            dict(num_trainers=2, num_inferencer=2, inference_batch_size=4, train_batch_size=4, train_minibatch_size=4, n_behind=1)]
OVER_A_NODE = dict(num_trainers=2, num_inferencer=1, inference_batch_size=8, train_batch_size=4, train_minibatch_size=4, slow_s=0.5,
                   heartbeat_s=0.1, ranks_timeout_s=2)
REWARD = """import json, os, subprocess, sys, zlib
for line in sys.stdin:
    q = json.loads(line)
    text = q["response"]
    kind = zlib.crc32(text.encode()) % 64
    good = sum(ord(c) % 2 for c in text) / max(len(text), 1)
    if kind == 0:
        subprocess.Popen(["sleep", "7200"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if kind == 1:
        sys.exit(1)
    poison = {2: '1e30', 3: 'NaN', 4: '-1e308', 5: '1e9', 6: '"much"', 7: 'null'}.get(kind, json.dumps(good))
    print('{"id":%d,"reward":%s,"format_acc":1,"ans_acc":%d}' % (q["id"], poison, good > 0.5), flush=True)
"""


class Disturber:
    """A run, what befalls it, and its continuation whenever it has ended."""

    def __init__(self, task, name, rng, settings, over_a_node):
        self.task, self.name, self.rng = task, name, rng
        self.flags = task.path(f"flags-{name}")
        os.mkdir(self.flags)
        self.dir = os.path.join(task.path("runs"), name)
        self.port = free_port() if over_a_node else None
        self.node = self.relay = None
        self.file = task.run_file(f"{name}.yaml", save_interval=3, **settings)
        self.n_kill, self.n_start, self.told = 0, 0, []
        self.run = None
        self.start(trainers_per_node=1) if over_a_node else self.start()
        if over_a_node:
            self.relay = Relay(self.port, os.path.join(self.dir, "sock"))
            end = time.monotonic() + LIMIT
            while not os.path.exists(os.path.join(self.dir, "sock/join")):
                assert time.monotonic() < end and self.run.process.poll() is None, self.run.logs()
                time.sleep(0.01)
            self.node_start()

    def node_start(self):
        """It leaves with a run that ends, and is started again with the next one."""
        if self.node:
            self.node.kill()
        self.node = Node(self.task, self.run, self.port, name="b", folder=self.name, host=NODE, extra=("--wait", "7200"))

    def start(self, **more):
        resume = os.path.exists(os.path.join(self.dir, "run.yaml"))
        extra = ["--max-steps", str(STEPS)]
        if self.port and not resume:
            extra += ["--listen", f"{HEAD}:{self.port}", *(w for k, v in more.items() for w in ("--" + k, str(v)))]
        if self.run:
            self.run.kill()
        self.run = Run(self.task, self.name, self.file, extra, resume=resume,
                       env=dict(LD_PRELOAD=PRELOAD, RC_FAULTS=self.flags, RC_FAULTS_UNDER=self.dir))
        self.n_start += 1

    def flag(self, name, on):
        path = os.path.join(self.flags, name)
        if on:
            open(path, "w").close()
        elif os.path.exists(path):
            os.unlink(path)

    def kill(self):
        parties = [p for p in (self.run, self.node) if p]
        pids = list(self.rng.choice(parties).processes().items())
        if not pids:
            return
        for name, pid in pids if self.rng.random() < 0.05 else [self.rng.choice(pids)]:
            try:
                os.kill(pid, signal.SIGKILL)
                self.n_kill += 1
                self.told.append(f"kill {name}")
            except ProcessLookupError:
                pass

    def stop(self):
        pids = list(self.run.processes().values())
        if not pids:
            return
        pid = self.rng.choice(pids)
        for sig, wait_s in ((signal.SIGSTOP, self.rng.random() / 3), (signal.SIGCONT, 0)):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                return
            time.sleep(wait_s)

    def disk(self):
        self.flag("full", True)
        time.sleep(self.rng.random() / 5)
        self.flag("full", False)

    def clock(self):
        self.flag("jump", not os.path.exists(os.path.join(self.flags, "jump")))

    def cut(self):
        if self.relay:
            self.relay.cut(**self.rng.choice((dict(), dict(node=False), dict(head=False))))
            time.sleep(self.rng.random())
            self.relay.heal()

    def finish(self, kills):
        """Go on until it has had these and has finished; returns its bytes."""
        end = time.monotonic() + LIMIT
        while True:
            if self.run.process.poll() is not None:
                code, last = self.run.wait()
                if last.get("event") == "finished":
                    return self.run.weights(STEPS), self.run.ledger()
                self.told.append(f"ended {code}: {last.get('reason', '')[:150]}")
                self.start()
            if self.node and self.node.process.poll() is not None:
                self.node_start()
            if time.monotonic() > end:
                raise AssertionError("\n".join(self.told[-20:]) + self.run.logs() + (self.node.logs() if self.node else ""))
            if self.n_kill >= kills:
                self.flag("jump", False)
                time.sleep(0.05)
                continue
            time.sleep(self.rng.random() / 4)    # a random moment, not a wait for something
            what = self.rng.choices((self.kill, self.stop, self.disk, self.clock, self.cut), (10, 1, 0.5, 1, 1))[0]
            if what != self.kill:
                self.told.append(what.__name__)
            before = self.n_kill
            what()
            if self.n_kill > before:
                end = time.monotonic() + LIMIT

    def close(self):
        for party in (self.run, self.node):
            if party:
                party.kill()
        if self.relay:
            self.relay.close()


class Soak(unittest.TestCase):
    def test_runs_end_in_the_same_bytes_whatever_befalls_them(self):
        seed = int(os.environ.get("SEED", time.time_ns() % 100000))
        rng, n_kill, n_run, n_start, began = random.Random(seed), 0, 0, 0, time.monotonic()
        task = Task()
        self.addCleanup(task.close)
        with open(task.path("reward.py"), "w") as f:
            f.write(REWARD)
        wants = {}
        while n_kill < KILLS:
            over_a_node = n_run % 5 == 4
            settings = OVER_A_NODE if over_a_node else SETTINGS[n_run % 5]
            if n_run % 5 not in wants:
                plain = Run(task, f"plain-{n_run}", task.run_file(f"plain-{n_run}.yaml", save_interval=3, **settings), ["--max-steps", str(STEPS)])
                self.addCleanup(plain.kill)
                code, last = plain.wait()
                self.assertEqual((code, last.get("step")), (0, STEPS), plain.logs())
                wants[n_run % 5] = plain.weights(STEPS), plain.ledger()
            d = Disturber(task, f"run-{n_run}", rng, settings, over_a_node)
            try:
                with self.subTest(seed=seed, run=n_run, settings=settings):
                    got = d.finish(min(KILLS_A_RUN, KILLS - n_kill))
                    self.assertEqual(got, wants[n_run % 5], d.told)
                    self.assertEqual(d.run.steps(), list(range(1, STEPS + 1)))
            finally:
                d.close()
            n_kill, n_run, n_start = n_kill + d.n_kill, n_run + 1, n_start + d.n_start
            print(f"SEED={seed}: {n_kill} kills, {n_run} runs, {n_start} starts in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

        def left():
            return [words for _, words in commands() if task.dir in " ".join(words) or words[:2] == ["sleep", "7200"]]
        end = time.monotonic() + 10    # what the last run's programs have started ends just after their scorer
        while left() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(left(), [])


if __name__ == "__main__":
    unittest.main()
