"""tags: limit=600

The network between two machines that train together is cut, both ways or one way, and comes back: nothing is trained twice, and the run
ends in the bytes of one that had none of it.

A relay on this machine cuts what it carries. LONG=1 does more, and cuts packets between two network namespaces (root)."""
import os
import random
import shutil
import subprocess
import sys
import time
import unittest
from nodes_test import Node
from relay import HEAD, NODE, Relay
from run_tools import ROLLCALL, RunCase, free_port

LONG = bool(os.environ.get("LONG"))
STEPS = 100
TWO = dict(num_trainers=2, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, train_batch_size=4, train_minibatch_size=4,
           save_interval=10, keep_checkpoints=3, slow_s=0.5, heartbeat_s=0.1, ranks_timeout_s=2)
WAYS = (dict(), dict(node=False), dict(head=False))    # both ways, only to the head, only to the node


class Partitions(RunCase):
    def start(self, *extra, **settings):
        return super().start("--max-steps", str(STEPS), *extra, **dict(TWO, **settings))

    def log(self, run, name):
        with open(os.path.join(run.dir, "logs", name + ".log")) as f:
            return f.read()

    def finish(self, run, node=None):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs() + (node.logs() if node else ""))
        self.assertNotRegex(node.logs(whole=True) if node else "", "Sanitizer|runtime error:")
        return run.weights(STEPS), run.ledger()

    def cut_and_compare(self, run, node, lengths, cut, heal, rng):
        """Cut for each of these lengths (seconds) at random steps; then the run's bytes must be those of one without a network."""
        rng.shuffle(lengths)
        cuts = []
        for at, s in zip(sorted(rng.sample(range(1, STEPS - 10), len(lengths))), lengths):
            run.wait_step(at)
            way = rng.choice(WAYS)
            cuts.append((run.step(), way, s))
            cut(**way)
            time.sleep(s)
            heal()
        with self.subTest(cuts=cuts):
            got = self.finish(run, node)
            self.assertEqual(got, self.finish(self.plain))
            self.assertIn("has joined, with trainer 1", self.log(run, "controller"))
            self.assertRegex(self.log(run, "controller"), r"has left the others in a \w+: trainer \d \(")    # it is named

    def rng(self):
        seed = int(os.environ.get("SEED", time.time_ns() % 100000))
        print(f"SEED={seed}", file=sys.stderr)
        return random.Random(seed)

    def begin(self, address, **settings):
        self.plain = self.start()
        run = self.start("--listen", address, trainers_per_node=1, **settings)
        self.until("the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")), run)
        return run

    def test_random_cuts_by_a_relay_change_no_byte(self):
        port = free_port()
        run = self.begin(f"{HEAD}:{port}")
        relay = Relay(port, os.path.join(run.dir, "sock"))
        self.addCleanup(relay.close)
        crowd = subprocess.Popen([ROLLCALL, "simulate", "--join", f"tcp://{HEAD}:{port}", "--token-file", os.path.join(run.dir, "sock/join"),
                                  "--nodes", "2", "--seconds", "100000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (crowd.poll() is None and crowd.kill(), crowd.wait(), crowd.stdout.close()))
        self.assertRegex(crowd.stdout.readline(), "^2 nodes are in, ")
        self.assertRegex(self.log(run, "gate"), "node 'crowd-0000' .* first trainer there: -1\n")    # the place is the node's
        crowd.terminate()
        crowd.wait()
        node = Node(self.task, run, port, host=NODE)
        self.addCleanup(node.kill)
        lengths = [0.1, 0.2, 0.7, 1.2, 2.4] * (4 if LONG else 1)    # the trainers wait 2 s for each other
        self.cut_and_compare(run, node, lengths, relay.cut, relay.heal, self.rng())

    def ip(self, *words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    @unittest.skipUnless(LONG and os.geteuid() == 0 and shutil.which("ip"), "network namespaces are for root, and for LONG=1")
    def test_fifty_random_cuts_between_namespaces_change_no_byte(self):
        """Packets are lost: what waits for an answer sees nothing at all. Connections of trainers end after 30 s of that."""
        ns, near, far, there = f"rch{os.getpid()}", f"rcha{os.getpid()}"[:15], f"rchb{os.getpid()}"[:15], "10.213.7.2"
        here = "10.213.7.1"
        self.ip("netns", "add", ns)
        self.addCleanup(lambda: self.ip("netns", "del", ns))
        self.ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", ns)
        self.addCleanup(lambda: self.ip("link", "del", near, check=False))
        for where, name, address in (((), near, here), (("-n", ns), far, there)):
            self.ip(*where, "address", "add", address + "/24", "dev", name)
            self.ip(*where, "link", "set", name, "up")
        self.ip("-n", ns, "link", "set", "lo", "up")
        subprocess.run(["tc", "qdisc", "add", "dev", near, "root", "tbf", "rate", "200mbit", "burst", "64k", "latency", "50ms"], check=True)

        def cut(head=True, node=True):
            if head and node:
                self.ip("link", "set", near, "down")
            elif head:
                self.ip("-n", ns, "route", "add", "blackhole", here + "/32")
            else:
                self.ip("route", "add", "blackhole", there + "/32")

        def heal():
            self.ip("link", "set", near, "up")
            self.ip("-n", ns, "route", "del", "blackhole", here + "/32", check=False)
            self.ip("route", "del", "blackhole", there + "/32", check=False)
        self.addCleanup(heal)
        port = free_port()
        run = self.begin(f"{here}:{port}", ranks_timeout_s=1800)
        node = Node(self.task, run, port, host=here, prefix=("ip", "netns", "exec", ns))
        self.addCleanup(node.kill)
        n = int(os.environ.get("CUTS", 50))
        self.cut_and_compare(run, node, ([0.3, 1, 2, 4, 8] * 9 + [15, 40, 40, 65, 120])[-n:], cut, heal, self.rng())


if __name__ == "__main__":
    unittest.main()
