"""tags: limit=600

The network between two machines that train together is cut, both ways or one way, and comes back: nothing is trained twice, and the run
ends in the bytes of one that had none of it.

A relay on this machine cuts what it carries, and so does a link between two network namespaces, whose packets take their time and are lost
(root). LONG=1 does more of both."""
import itertools
import os
import random
import subprocess
import sys
import time
import unittest
from link import HERE, POSSIBLE, WHY_NOT, Link
from nodes_test import Node
from relay import HEAD, NODE, Relay
from run_tools import ROLLCALL, RunCase, free_port

LONG = bool(os.environ.get("LONG"))
TWO = dict(num_trainers=2, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, train_batch_size=4, train_minibatch_size=4,
           save_interval=10, keep_checkpoints=3, slow_s=0.5, heartbeat_s=0.1, ranks_timeout_s=2)
WAYS = (dict(), dict(node=False), dict(head=False))    # both ways, only to the head, only to the node


class Partitions(RunCase):
    steps = 100

    def start(self, *extra, prefix=(), **settings):
        return super().start("--max-steps", str(self.steps), *extra, prefix=prefix, **dict(TWO, **settings))

    def log(self, run, name):
        with open(os.path.join(run.dir, "logs", name + ".log")) as f:
            return f.read()

    def finish(self, run, node=None):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", self.steps), run.logs() + (node.logs() if node else ""))
        self.assertNotRegex(node.logs(whole=True) if node else "", "Sanitizer|runtime error:")
        return run.weights(self.steps), run.ledger()

    def cut_and_compare(self, run, node, lengths, cut, heal, rng, weather=lambda: None):
        """Cut for each of these lengths (seconds) at random steps, and change the weather; then the run's bytes must be those of one without
        a network."""
        rng.shuffle(lengths)
        cuts = []
        for at, s in zip(sorted(rng.sample(range(1, self.steps - 5), len(lengths))), lengths):
            run.wait_step(at)
            way = rng.choice(WAYS) if s < max(lengths) else WAYS[0]    # what still comes one way may carry a wait over: then nobody is named
            cuts.append((run.step(), way, s))
            cut(**way)
            time.sleep(s)
            heal()
            cuts[-1] += (weather(),)
        with self.subTest(cuts=cuts):
            got = self.finish(run, node)
            self.assertEqual(got, self.finish(self.plain))
            self.assertIn("has joined, with trainer 1", self.log(run, "controller"))
            self.assertRegex(self.log(run, "controller"), r"has left the others in a \w+: trainer \d \(")    # it is named

    def rng(self):
        seed = int(os.environ.get("SEED", time.time_ns() % 100000))
        print(f"SEED={seed}", file=sys.stderr)
        return random.Random(seed)

    def begin(self, address, prefix=(), **settings):
        self.plain = self.start()
        run = self.start("--listen", address, prefix=prefix, trainers_per_node=1, **settings)
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

    def over_a_link(self, n_cut, lengths, weathers, **settings):
        """Cut a link of changing weather: (round trip and jitter in ms, loss, Mbit/s) are drawn before the start and at each cut."""
        rng = self.rng()
        link = Link(rng.randrange(1 << 32))
        self.addCleanup(link.close)

        def weather():
            now = rng.choice(weathers)
            delay_ms, jitter_ms, loss, rate = now
            link.order(f"delay {delay_ms / 2} {jitter_ms / 2}", f"loss {loss}", f"rate {rate}")
            return now
        weather()
        run = self.begin(f"{HERE}:29517", prefix=link.here, **settings)
        node = Node(self.task, run, 29517, host=HERE, prefix=link.there, extra=("--wait", "1200"))
        self.addCleanup(node.kill)
        self.cut_and_compare(run, node, lengths[-n_cut:], link.cut, link.heal, rng, weather)
        for way in link.count().values():
            self.assertGreater(way["lost"], 0)
        return run

    @unittest.skipUnless(POSSIBLE, WHY_NOT)
    def test_cuts_of_a_long_lossy_and_narrow_link_change_no_byte(self):
        self.steps = 14
        self.over_a_link(5, [0.2, 0.7, 1.2, 2.4, 4], [(80, 8, 0.02, 100), (20, 2, 0.05, 100), (80, 0, 0.03, 10)], save_interval=7)

    @unittest.skipUnless(POSSIBLE, WHY_NOT)
    def test_a_group_that_takes_long_on_a_narrow_link_is_waited_for(self):
        link = Link(1)
        self.addCleanup(link.close)
        run = super().start("--listen", f"{HERE}:29517", prefix=link.here, inference_batch_size=2, inference_microbatch_size=1, train_batch_size=2,
                            train_minibatch_size=2, num_generations=128, max_new_tokens=200, min_new_tokens=200, slow_s=10,
                            heartbeat_s=0.5)
        self.until("the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")), run)
        node = Node(self.task, run, 29517, host=HERE, prefix=link.there)
        self.addCleanup(node.kill)
        came = lambda: node.logs(whole=True).count("are here")    # weights; then a group goes, and then the next weights come
        self.until("the node has sampled with shared weights", lambda: came() >= 2, run, node)
        link.order("delay 40", "rate 0.2")
        before = came()
        self.until("another of its groups has gone", lambda: came() >= before + 2, run, node)
        gauges = lambda: next((p["gauges"] for p in self.status(run)["processes"] if p["name"] == "b/uplink" and "gauges" in p), {})
        self.until("how long the head takes to answer is told", lambda: gauges().get("head_answer_ms", 0) > 80, run, node)
        self.assertNotIn("redialing", node.logs(whole=True))
        self.assertNotIn("is gone", self.log(run, "gate"))

    @unittest.skipUnless(LONG and POSSIBLE, "LONG=1: " + WHY_NOT)
    def test_fifty_random_cuts_between_namespaces_change_no_byte(self):
        """What waits for an answer sees nothing at all, for up to ten minutes. Connections of trainers end after 30 s of that."""
        weathers = list(itertools.product((0, 5, 40, 80, 200), (0, 10), (0, 0.01, 0.02, 0.05), (0, 10, 200)))
        self.over_a_link(int(os.environ.get("CUTS", 50)), [0.3, 1, 2, 4, 8] * 9 + [15, 40, 65, 120, 600], weathers, ranks_timeout_s=1800)


if __name__ == "__main__":
    unittest.main()
