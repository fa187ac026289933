"""tags: limit=600

Trainers on several nodes: the bytes of as many on one host, whoever is killed. LONG=1 also kills at random and moves the head to
another machine."""
import json
import os
import random
import signal
import subprocess
import time
import unittest
from nodes_test import Node
from run_tools import Holds, LIMIT, ROLLCALL, Run, RunCase, alive, can_mount, free_port, written

STEPS = 12
FOUR = dict(num_trainers=4, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=2,
            train_minibatch_size=2, slow_s=1, heartbeat_s=0.1)
WIDE = dict(FOUR, num_trainers=2, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, train_batch_size=4, train_minibatch_size=4,
            sum_parts=4)
HELD = "worker cpu:0", "trained"
TWINS = {"agent": "keeper", "keeper": "agent"}    # each restarts the other one


class Hosts(RunCase):
    def start(self, *extra, **settings):
        return super().start("--max-steps", str(STEPS), *extra, **dict(FOUR, **settings))

    def node(self, run, port, name, n_device=2, **how):
        self.until("the head has a join token", lambda: os.path.exists(os.path.join(run.dir, "sock/join")), run)
        node = Node(self.task, run, port, name=name, extra=["--inferencers", str(n_device)], **how)
        self.addCleanup(node.kill)
        return node

    def finish(self, run, *nodes):
        code, last = run.wait(*nodes)
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs() + "".join(n.logs() for n in nodes))
        self.assertEqual(run.processes(), {})
        for side in (run, *nodes):
            self.assertEqual([f for f in os.listdir(os.path.join(side.dir, "sock")) if f.startswith("trainers")], [])
        for node in nodes:
            self.assertNotRegex(node.logs(whole=True), "Sanitizer|runtime error:")
        return run.weights(STEPS), run.ledger()

    def plays(self, run):
        done = run.ctl("status", "--json")
        return {p["name"]: p.get("plays", "") for p in json.loads(done.stdout)["processes"]} if done.returncode == 0 else {}

    def one_more_step(self, run, node, holds):
        self.until("a trainer of the node is held in a step", lambda: holds.held(*HELD), run, node)
        pid = holds.held(*HELD)
        holds.arm(*HELD)
        holds.release(*HELD, pid)

    def log(self, side, name):
        with open(os.path.join(side.dir, "logs", name + ".log"), errors="replace") as f:
            return f.read()

    def test_trainers_of_two_nodes_give_the_bytes_of_one_host_and_a_spare_node_replaces_a_killed_one(self):
        port, hide = free_port(), can_mount()
        run = self.start("--listen", f"127.0.0.1:{port}", trainers_per_node=2, zero_stage=3)
        holds = Holds(self.task.path("holds"))
        holds.arm(*HELD)
        b = self.node(run, port, "b", env={"RC_TEST_HOLD": holds.dir})
        self.until("two trainers are on the node", lambda: self.plays(run).get("b/worker cpu:1", "").startswith("trainer 3"), run, b)
        one = self.node(run, port, "one", n_device=1)    # too small for two trainers
        spare = self.node(run, port, "spare", hidden=os.path.join(run.dir, "checkpoints") if hide else None)    # it sees the model, and no checkpoints
        samples = lambda node: self.plays(run).get(f"{node}/worker cpu:0") == "producer 0"
        self.until("two nodes sample only", lambda: samples("one") and samples("spare"), run, one, spare)
        for n in range(STEPS - 2):    # steps; the others wait for the held trainer in each, and so may the end of a checkpoint
            if n >= 5 and self.query(run, "select 1 from event where kind = 'checkpoint'"):
                break
            self.one_more_step(run, b, holds)
        self.until("a trainer of the node is in one more step", lambda: holds.held(*HELD), run, b)
        plain = self.finish(self.start())
        b.kill()
        self.assertEqual(self.finish(run, spare), plain)
        self.assertIn("trains (2 of the trainers, from number 2)", written(spare.errors))
        # the one that has lost them names them; the other may only see that one leave
        self.assertRegex(self.log(run, "worker-cpu-0") + self.log(run, "worker-cpu-1"), r"trainer [23] \(on another node\)")
        self.assertEqual("was copied in" in self.log(spare, "uplink"), hide)
        if hide:    # its large files not over TLS
            self.assertRegex(self.log(spare, "uplink"), r"was copied in [\d.]+ s, (?!0\.0 )[\d.]+ MiB of it over connections for large data")
        self.assertEqual(os.readlink(os.path.join(spare.dir, "model/model.safetensors")), self.task.path("model/model.safetensors"))

    def test_trainers_that_never_come_are_named_at_once_and_then_end_the_run(self):
        port, slow = free_port(), 1
        run = self.start("--listen", f"127.0.0.1:{port}", trainers_per_node=2, slow_s=slow, join_timeout_s=5)
        who = "trainers 2, 3 of another node have not come"
        self.until("train --batch says who is missing", lambda: any(who in line["text"] for line in run.told("alert")), run)
        alert = run.told("alert")[0]["text"]
        self.assertRegex(alert, who + r" for \d s; the run fails after 5 s \('join_timeout_s'\)")
        self.assertLess(int(alert.split(" for ")[1].split()[0]), 5)
        self.until("the top of the console says so", lambda: f"doctor: no step is made: {who}" in run.ctl("status").stdout, run)
        node = self.node(run, port, "late")
        self.until("the trainers are said to have come", lambda: any("all trainers are here" in line["text"] for line in run.told("node")), run, node)
        node.kill()
        code, last = run.wait(node)
        self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
        self.assertRegex(last["reason"], who + r" for \d s \('join_timeout_s'\); 'rollcall train --resume' continues")

    def test_groups_of_micro_batches_send_less_between_nodes_and_end_in_the_bytes_of_one_device(self):
        settings = dict(FOUR, train_microbatch_size=1, kl_coeff=0.01)
        steps, port = 2, free_port()
        one = super().start("--max-steps", str(steps), **dict(settings, num_trainers=1, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8,
                                                              train_batch_size=8, train_minibatch_size=8, grad_group=2))
        self.assertEqual(one.wait()[0], 0, one.logs())
        sent = []
        for group in (1, 2):
            run = super().start("--max-steps", str(steps), "--listen", f"127.0.0.1:{port}", **dict(settings, trainers_per_node=2, grad_group=group))
            node = self.node(run, port, f"groups-of-{group}")
            self.assertEqual(run.wait()[0], 0, run.logs() + node.logs())
            self.assertEqual(run.weights(steps) == one.weights(steps), group == 2)
            out = subprocess.run([ROLLCALL, "export", "jsonl", run.dir], capture_output=True, text=True, check=True).stdout
            made = [row for row in map(json.loads, out.splitlines()) if "metrics" in row]
            self.assertLess(max(row["metrics"]["time/train_s"] for row in made), 9)    # an answer that does not come is asked for again after 10 s
            sent.append(next(row["metrics"] for row in made if row.get("step") == 1))
            node.kill()
        self.assertEqual([m["train/micro_batches"] for m in sent], [16, 16])
        between = [m["perf/hosts_reduce_gb"] for m in sent]
        self.assertGreater(between[0], 0)
        self.assertAlmostEqual(between[1], between[0] / 2, delta=between[0] * 1e-9)
        self.assertEqual(sent[0]["perf/hosts_gather_gb"], sent[1]["perf/hosts_gather_gb"])    # new weights

    def one_device(self):
        """What all layouts end in whose sums are made in four parts."""
        if not hasattr(Hosts, "of_one_device"):
            Hosts.of_one_device = self.finish(self.start(**dict(WIDE, num_trainers=1, train_batch_size=8, train_minibatch_size=8)))
        return Hosts.of_one_device

    def layout(self, killed, n_spare=0, **layout):
        """Two trainers of several devices each, one of them on a node. One is killed within a step; a node that is too small for a trainer samples.
        n_spare: devices that the node has, and no producer."""
        port, each = free_port(), layout.get("tensor_parallel_size", 1) * layout.get("pipeline_parallel_size", 1)
        plain = self.one_device()
        run = self.start("--listen", f"127.0.0.1:{port}", trainers_per_node=1, **dict(WIDE, **layout))
        holds = Holds(self.task.path("holds-" + os.path.basename(run.dir)))
        holds.arm(*HELD)
        name, small_name = (os.path.basename(run.dir) + "-" + end for end in ("b", "small"))
        small = self.node(run, port, small_name, n_device=each - 1)
        self.until("the small node samples", lambda: self.plays(run).get(small_name + "/worker cpu:0") == "producer 0", run, small)
        node = self.node(run, port, name, n_device=each + n_spare, env={"RC_TEST_HOLD": holds.dir})
        for _ in range(5):
            self.one_more_step(run, node, holds)
        self.until("the node's trainer is in the sixth step", lambda: holds.held(*HELD), run, node)
        pid, plays = holds.held(*HELD), self.plays(run)
        self.assertEqual([who for process, who in plays.items() if process.startswith(name + "/worker")], ["trainer 1, producer 0"])
        os.kill(pid if killed == "node" else run.processes()["worker cpu:0"], signal.SIGKILL)
        holds.disarm(*HELD)
        self.assertEqual(self.finish(run, node, small), plain)
        self.assertIn("trains (1 of the trainers, from number 1)", written(node.errors))
        list_of = lambda n: ",".join(f"cpu:{i}" for i in range(n))
        self.assertEqual(f"note: of the devices {list_of(each + n_spare)} only {list_of(each)} are used" in written(node.errors), n_spare > 0)
        self.assertNotIn("trains (", written(small.errors))
        self.assertIn(f"and only samples: for trainer 1 it needs {each} devices, and has {each - 1}", str(self.query(run, "select * from event")))

    def test_trainers_in_slices_on_two_nodes_give_the_bytes_of_one_device(self):
        self.layout("node", n_spare=1, tensor_parallel_size=2, producer_tensor_parallel_size=2, zero_stage=3)

    def test_trainers_in_stages_on_two_nodes_give_the_bytes_of_one_device(self):
        self.layout("head", pipeline_parallel_size=2, zero_stage=2)

    @unittest.skipUnless(os.environ.get("LONG"), "eight devices, for LONG=1")
    def test_trainers_in_stages_of_slices_on_two_nodes_give_the_bytes_of_one_device(self):
        for zero, killed in ((0, "head"), (1, "node")):
            with self.subTest(zero=zero):
                self.layout(killed, pipeline_parallel_size=2, tensor_parallel_size=2, zero_stage=zero)

    @unittest.skipUnless(os.environ.get("LONG"), "for LONG=1")
    def test_random_kills_on_both_sides_change_no_byte(self):
        n, layouts = 80, (dict(trainers_per_node=2), dict(WIDE, trainers_per_node=1, tensor_parallel_size=2, zero_stage=3))
        whole = [self.start("--max-steps", str(n), save_interval=8, **dict(layout, trainers_per_node=0)) for layout in layouts]
        for run in whole:
            self.assertEqual(run.wait()[0], 0, run.logs())
        seed = int(os.environ.get("SEED", time.time_ns() % 100000))
        rng = random.Random(seed)
        for i in range(10):
            port, killed, plain = free_port(), [], whole[i % 2]
            run = self.start("--max-steps", str(n), "--listen", f"127.0.0.1:{port}", save_interval=8, **layouts[i % 2])
            node = self.node(run, port, f"random-{i}")
            with self.subTest(seed=seed, round=i, killed=killed):
                for at in sorted(rng.sample(range(1, n - 5), 6)):
                    run.wait_step(at, node)
                    side = rng.choice((run, node))
                    name, pid = rng.choice(sorted(side.processes().items()) or [("", 0)])
                    if name in TWINS:    # with both dead, nothing restarts that side
                        self.until(f"the {TWINS[name]} lives", lambda: TWINS[name] in side.processes() or run.process.poll() is not None, run, node)
                    killed.append((at, side is run, name))
                    if pid:
                        run.signal(pid, signal.SIGKILL)
                        self.until(f"the {name} is gone", lambda: not alive(pid), run, node)    # or it would be taken for the twin that lives
                self.assertEqual(run.wait(node)[0], 0, run.logs() + node.logs())
                self.assertEqual((run.weights(n), run.ledger()), (plain.weights(n), plain.ledger()))

    def test_an_order_to_save_that_is_lost_on_its_way_to_a_node_is_given_again(self):
        port, at = free_port(), ("uplink", "passing")
        plain = self.finish(self.start())
        run = self.start("--listen", f"127.0.0.1:{port}", trainers_per_node=2, zero_stage=2)
        holds = Holds(self.task.path("holds-save"))
        holds.arm(*at)
        node = self.node(run, port, "forgetful", env={"RC_TEST_HOLD": holds.dir})
        self.until("an order to save is on its way", lambda: holds.held(*at), run, node)
        os.kill(holds.held(*at), signal.SIGKILL)
        self.assertEqual(self.finish(run, node), plain)

    def test_an_agent_killed_when_the_run_has_ended_but_for_itself_starts_no_trainer_again(self):
        """It would wait for those on the node, which has heard of the end and is gone."""
        port, at = free_port(), ("agent", "ending")
        holds = Holds(self.task.path("holds-end"))
        holds.arm(*at)
        run = self.start("--listen", f"127.0.0.1:{port}", trainers_per_node=2, env={"RC_TEST_HOLD": holds.dir})
        node = self.node(run, port, "over")
        self.until("the head's agent is about to end", lambda: holds.held(*at), run, node)
        self.assertEqual(node.process.wait(LIMIT), 0, node.logs())
        os.kill(holds.held(*at), signal.SIGKILL)
        self.finish(run, node)
        self.assertNotIn(f"loads step {STEPS}", self.log(run, "controller"))

    @unittest.skipUnless(os.environ.get("LONG"), "takes seven seconds, for LONG=1")
    def test_a_node_finds_the_head_that_goes_on_elsewhere_and_trains_on_with_it(self):
        a, b = free_port(), free_port()
        here, there = self.task.path("disk-of-a"), self.task.path("disk-of-b")
        two = dict(num_trainers=2, train_batch_size=4, train_minibatch_size=4, num_inferencer=1, inference_batch_size=8,
                   inference_microbatch_size=8)
        plain = self.finish(self.start(**two))
        run = self.start("--listen", f"127.0.0.1:{a}", trainers_per_node=1, journal_dir=here, zero_stage=2, **two)
        holds = Holds(self.task.path("holds-2"))
        holds.arm(*HELD)
        node = self.node(run, a, "mobile", n_device=1, more=f",127.0.0.1:{b}", env={"RC_TEST_HOLD": holds.dir})
        for _ in range(5):
            self.one_more_step(run, node, holds)
        self.until("the node's trainer is in the sixth step", lambda: holds.held(*HELD), run, node)
        run.kill()                                  # the head's machine, with its disk
        os.rename(here, here + "-lost")
        holds.release(*HELD, holds.held(*HELD))
        again = Run(self.task, os.path.basename(run.dir), resume=True, extra=["--journal-dir", there, "--listen", f"127.0.0.1:{b}"])
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again, node), plain)
        self.assertIn(f"looking for the head at 127.0.0.1:{b}", self.log(node, "uplink"))
        self.assertIn("node 'mobile'", self.log(again, "gate"))

    def test_a_dry_run_says_which_trainers_are_on_nodes(self):
        listen = f"127.0.0.1:{free_port()}"
        file = self.task.run_file("dry.yaml", **dict(FOUR, num_trainers=5, train_batch_size=1, train_minibatch_size=1, inference_batch_size=5, inference_microbatch_size=5),
                                  trainers_per_node=2, listen=listen, max_steps=4)
        done = subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("cpu:1: trainer 1, producer 1\n", f"a node that joins at {listen} with 2 devices: trainers 2 to 3, samples too\n",
                      "with 1 device: trainer 4, samples too\n", "exchange: tcp\n"):
            self.assertIn(words, done.stdout)
        dry = lambda *more: subprocess.run([ROLLCALL, "train", file, "--dry-run", *more], capture_output=True, text=True, timeout=LIMIT)
        done = dry("-tp", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("cpu:1: trainer 1, producer 1\n", "cpu:2: with trainer 0\n", f"{listen} with 4 devices: trainers 2 to 3, samples too\n", f"{listen} with 2 devices: trainer 4, samples too\n",
                      "layout:         5 trainers on 2 devices each; 2 producers on 1 device each; exchange: tcp\n"):
            self.assertIn(words, done.stdout)
        for layout, nearest in ((("-pp", "2", "-i", "1"), "need 4; 'trainers_per_node' 1 needs 2 here, and the others on nodes"),
                                (("-pp", "2", "-tp", "2", "-i", "1", "--trainers-per-node", "1"), "num_trainers 1 on this machine and num_inferencer 1 with placement "
                                 "'shared', tensor_parallel_size 2, pipeline_parallel_size 2 and producer_tensor_parallel_size 1 need 4; "
                                 "'tensor_parallel_size' 2 with 'pipeline_parallel_size' 1 needs 2")):
            done = dry(*layout, "--devices", "cpu:0,cpu:1")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(nearest, done.stderr)


if __name__ == "__main__":
    unittest.main()
