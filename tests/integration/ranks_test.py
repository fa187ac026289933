"""tags: starter limit=900

Several trainers: the same bytes each time, wherever they are placed and whoever dies."""
import glob
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest
from unittest import mock
import tiny_model
from run_tools import LIMIT, ROLLCALL, ROOT, Holds, Run, RunCase, built, written

LONG = bool(os.environ.get("LONG"))
STEPS = 8
TWO = dict(num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4,
           train_minibatch_size=4)
ONE = dict(TWO, num_trainers=1, train_batch_size=8, train_minibatch_size=8)
FOUR = dict(TWO, num_trainers=4, train_batch_size=2, train_minibatch_size=2)
APART = dict(TWO, placement="apart")
BEHIND = dict(APART, n_behind=2, train_batch_size=2, train_minibatch_size=2)    # two optimizer steps a rollout step


class Ranks(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = {}
        cls.n_held = 0

    def start(self, settings):
        return super().start("--max-steps", str(STEPS), **settings)

    def finish(self, run):
        """What must be the same in all runs; none of the trainers' meetings may still have a name."""
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(run.processes(), {})
        self.assertEqual([f for f in os.listdir(os.path.join(run.dir, "sock")) if f.startswith("trainers")], [])
        return run.weights(STEPS), run.ledger()

    def whole(self, settings):
        run = self.start(settings)
        try:
            return self.finish(run)
        finally:
            run.kill()

    def undisturbed(self, settings):
        key = json.dumps(settings, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.whole(settings)
        return self.known[key]

    def plans(self, run, name):
        """The values of a part of the memory plan, in the logs of all workers; each has made one when the first step is done."""
        run.wait_step(1)
        found = set()
        for log in glob.glob(os.path.join(run.dir, "logs", "worker-*.log")):
            with open(log) as f:
                found |= {re.search(name + r"=(\S+)", line)[1] for line in f if "memory planned" in line}
        return found

    def held(self, settings):
        """A run, and {number of a worker's device: what it has, in units of the whole weights}, as the models count them when all is loaded; the plan
        says the same. The first step waits until all workers have loaded: a run of few steps may end before its last sampler has."""
        type(self).n_held += 1
        found, holds = {}, Holds(self.task.path(f"held-{self.n_held}"))
        holds.arm("worker cpu:0", "training")
        run = self.start(dict(settings, env=dict(RC_TEST_HOLD=holds.dir)))
        n_worker = settings["num_trainers"] + (settings["num_inferencer"] if settings.get("placement") == "apart" else 0)

        def loaded():
            for log in glob.glob(os.path.join(run.dir, "logs", "worker-*.log")):
                with open(log) as f:
                    line = next(filter(None, (re.search(r"weights held held_mb=(\S+) planned_mb=(\S+) whole_mb=(\S+)", line) for line in f)), None)
                if not line:
                    return False
                held, planned, whole = map(float, line.groups())
                self.assertEqual(held, planned, log)
                found[int(re.search(r"worker-cpu\D(\d+)", log)[1])] = held / whole
            return len(found) == n_worker
        self.until("every worker has its weights", loaded, run)
        holds.disarm("worker cpu:0", "training")
        return run, found

    def metric(self, run, name):
        """{step: value} of a metric of the run."""
        out = subprocess.run([ROLLCALL, "export", "jsonl", run.dir, "--series", name], capture_output=True, text=True, check=True)
        rows = map(json.loads, out.stdout.splitlines())
        return {row["step"]: row["metrics"][name] for row in rows if name in row["metrics"]}

    def test_two_trainers_and_two_producers_repeat_to_the_byte_and_placement_does_not_matter(self):
        first = self.undisturbed(TWO)
        self.assertEqual(first, self.whole(TWO))
        self.assertEqual(first, self.undisturbed(APART))

    def test_a_dry_run_says_of_trainers_what_the_memory_plan_says(self):
        whole = None
        tp, pp, local = dict(tensor_parallel_size=2), dict(pipeline_parallel_size=2), dict(collective="local")
        for zero, settings, weights, n_behind in ((3, local, "copy", 0), (3, {}, "copy", 0), (3, {}, "copy", 1), (3, {}, "files", 0), (0, {}, "auto", 0),
                                                  (1, pp, "auto", 0), (2, {}, "auto", 0), (3, tp, "auto", 0), (3, pp, "auto", 0), (0, tp, "copy", 1),
                                                  (3, dict(tp, **local), "copy", 0), (1, dict(tp, **local), "copy", 0)):
            n = 2 if tp.items() <= settings.items() or settings == pp else 1
            keeps = zero == 3 and "collective" in settings    # shards that the first one does not reach
            file = self.task.run_file(f"dry-{zero}-{n}.yaml", **APART, zero_stage=str(zero), devices=",".join(f"cpu:{q}" for q in range(2 * n + 2)),
                                      max_steps=4, weights=weights, n_behind=n_behind, **settings)
            done = subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            parts = [float(x) for x in re.search(r"weights (\S+), gradient (\S+), masters and moments (\S+),", done.stdout).groups()]
            said = re.findall(r"zero_stage (\d): weights, gradient, masters and moments take (\S+) MiB of [a-z ]*each[a-z ]* of 2 trainers", done.stdout)
            self.assertEqual([int(z) for z, _ in said], [zero])
            self.assertEqual(re.findall(r"With zero_stage (\d)", done.stdout), [str(zero)] if settings == pp else [])    # the stages
            copy = re.search(r"with zero_stage 3 the first one keeps a whole copy of the weights, too: (\S+)\s+MiB", done.stdout)
            self.assertEqual(copy is not None, keeps and n == 1)
            self.assertEqual("get the weights out of all trainers' shards, without a whole copy" in done.stdout, zero == 3 and n == 1 and not copy)
            whole = float(copy.group(1)) if copy else whole
            held = re.search(r"^holds: +trainer 0.*\n((?: {18}.*\n)+)", done.stdout, re.M).group(1)
            self.assertEqual(re.findall(r"^ {18}(\w+)", held, re.M), ["trained"] + ["copy"] * keeps + ["kept"] * n_behind)
            self.assertEqual(len(re.findall(r"^ +sampled +whole +from the first trainer ", done.stdout, re.M)), 1, done.stdout)
            self.assertEqual("the first one's first device also keeps the whole weights, to publish" in done.stdout, keeps and n > 1)
            each = float(said[0][1]) + (whole if keeps else 0) + n_behind * whole    # the first trainer, whose plan it is
            self.assertAlmostEqual(each, sum(parts) * 1e9 / 2**20, delta=0.006 * each)    # of three digits

    def test_a_dry_run_says_how_much_of_which_gpu_is_in_host_memory(self):
        """Of a model without weights, on GPUs of which only the memory is known: with AdamW's 12 bytes for each of 126 M parameters they are too
        small, and one of them is smaller than the others."""
        def sparse(path, shapes, spread, rng):
            header, at = {}, 0
            for name, shape in shapes.items():
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at := at + 4 * math.prod(shape)]}
            text = json.dumps(header).encode()
            with open(path, "wb") as f:
                f.write(struct.pack("<Q", len(text)) + text)
                f.truncate(8 + len(text) + at)
        model, library = self.task.path("large"), built("fake_cuda/librollcall_cuda.so")
        with mock.patch.object(tiny_model, "write_tensors", sparse):
            tiny_model.write(model, d=1024, layers=8, heads=8, kv_heads=4, ff=4096)
        folder = self.task.path("bin")
        os.mkdir(folder)
        for file in (ROLLCALL, library):
            shutil.copy(file, folder)

        def dry(gpus, offload, **layout):
            file = self.task.run_file("gpus.yaml", model=model, devices="cuda:0,cuda:1,cuda:2,cuda:3", token_budget=2048, recompute_full=True,
                                      offload_optimizer=offload, **layout)
            return subprocess.run([os.path.join(folder, "rollcall"), "train", file, "--dry-run"], capture_output=True, text=True, timeout=LIMIT,
                                  env=dict(os.environ, FAKE_CUDA=gpus, LD_PRELOAD=library, RC_CUDA_CHOICES="off"))
        team = dict(tensor_parallel_size=4, producer_tensor_parallel_size=4)
        for layout in (team, dict(team, tensor_parallel_size=2, pipeline_parallel_size=2)):
            refused, fits = (dry("ok3 ok3 ok3 ok2.95", offload, **layout) for offload in (False, True))
            self.assertEqual((refused.returncode, fits.returncode), (1, 0), refused.stderr + fits.stderr)
            self.assertIn("it would fit with offload_optimizer", refused.stderr)
            said = re.search(r"and (\S+) GB of host memory for masters and moments: cuda:0 (\S+), cuda:1 (\S+), cuda:2 (\S+), cuda:3 (\S+)\n", fits.stdout)
            total, *each = map(float, said.groups())
            self.assertAlmostEqual(total, sum(each), delta=0.01)
            self.assertAlmostEqual(each[3], each[2] + 0.05, delta=0.0011)
            self.assertTrue(0 < min(each) and max(each) < 12 * 0.126 / 4 + 0.01, each)
        refused = dry("ok3 ok3 ok2.7 ok3", True, **team)
        self.assertRegex(refused.stderr, r"cuda:2 has 2\.7 GB free, and trainer 0, producer 0 needs 2\.9 GB of it; ")

    def test_any_number_of_trainers_ends_in_the_same_bytes_and_sees_the_same_numbers(self):
        """Whatever each of them keeps, too."""
        runs = [self.start(settings) for settings in (ONE, dict(FOUR, zero_stage=2), dict(TWO, zero_stage=0), dict(FOUR, zero_stage=3),
                                                 dict(FOUR, collective="tcp", zero_stage=3), dict(TWO, collective="local"))]
        try:
            want = self.undisturbed(TWO)
            self.assertEqual(self.plans(runs[1], "zero_stage"), {"2"})
            self.assertEqual(self.plans(runs[2], "zero_stage"), {"0"})
            self.assertEqual(self.plans(runs[3], "zero_stage"), {"3"})
            self.assertEqual(self.plans(runs[4], "zero_stage"), {"3"})
            self.assertEqual(self.plans(runs[5], "zero_stage"), {"1"})    # that is auto, also where bytes alone go from one to another
            for run in runs:
                self.assertEqual(self.finish(run), want)
            for name in ("train/loss", "train/grad_norm", "metrics/reward", "train/entropy", "train/advantages", "train/kl"):
                self.assertEqual(self.metric(runs[0], name), self.metric(runs[1], name), name)
            for step, value in self.metric(runs[1], "train/sampler_trainer_diff").items():
                self.assertEqual(value, 0, step)    # every trainer samples with the weights that all of them have
        finally:
            for run in runs:
                run.kill()

    def test_producers_on_several_devices_give_the_bytes_of_producers_on_one(self):
        """Whether they share the trainer's device or not, have slices of its whole weights or of the trainers' shards; every sum of the
        run is in 4 parts."""
        self.assertNotEqual(self.undisturbed(dict(TWO, sum_parts=4)), self.undisturbed(TWO))
        for settings in (dict(TWO, producer_tensor_parallel_size=2), dict(APART, producer_tensor_parallel_size=2, num_trainers=1, train_batch_size=8,
                                                                         train_minibatch_size=8),
                         dict(APART, producer_tensor_parallel_size=2, zero_stage=3, weights="copy"),
                         dict(TWO, producer_tensor_parallel_size=2, n_behind=1, zero_stage=3, weights="copy")):
            want = self.undisturbed(dict(TWO, sum_parts=4, n_behind=settings.get("n_behind", 0)))
            with self.subTest(**settings):
                run = self.start(settings)
                try:
                    run.wait_step(1)
                    plan = subprocess.run([ROLLCALL, "train", os.path.join(run.dir, "run.yaml"), "--dry-run"], capture_output=True, text=True)
                    self.assertIn("with producer 1\n", plan.stdout, plan.stderr)
                    self.assertIn("sums:           in 4 parts", plan.stdout)
                    if "weights" in settings and "n_behind" not in settings:
                        self.assertRegex(plan.stdout, r"out of the first trainer's own weights \(no further copy\), and each of a producer's "
                                         r"devices has [\d.]+ MB, its slices\n")
                    elif "weights" in settings:
                        self.assertRegex(plan.stdout, r"keeps 1 of the last versions for them \(([\d.]+) MB\), and each of a producer's "
                                         r"devices has [\d.]+ MB, its slices\n")
                    self.assertEqual(self.finish(run), want)
                    for step, value in self.metric(run, "train/sampler_trainer_diff").items():
                        self.assertEqual(value, 0, step)
                finally:
                    run.kill()

    def test_a_trainer_on_several_devices_gives_the_bytes_of_one_whoever_is_killed(self):
        """Whatever the producers have, with a reference, and from and to a checkpoint of one device."""
        one = dict(ONE, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, sum_parts=4)
        behind = dict(one, n_behind=1, kl_coeff=0.05, ref_update_steps=3)
        mesh = dict(TWO, sum_parts=4, tensor_parallel_size=2, pipeline_parallel_size=2)    # two pipelines of two teams
        cells = [(dict(one, tensor_parallel_size=2), one, "with trainer 0\n", None),
                 (dict(mesh, zero_stage=3), one, "cpu:0 and cpu:2, cpu:1 and cpu:5: layer 0", "worker cpu:1"),
                 (dict(one, tensor_parallel_size=2, offload_optimizer=True), one, "with trainer 0\n", "worker cpu:0"),
                 (dict(one, tensor_parallel_size=2, producer_tensor_parallel_size=2), one, "with trainer 0, with producer 0\n", "worker cpu:0"),
                 (dict(behind, tensor_parallel_size=2, placement="apart"), behind, "with trainer 0\n", "worker cpu:0"),
                 (dict(behind, pipeline_parallel_size=2), behind, "with trainer 0\n", "worker cpu:0"),
                 (dict(TWO, pipeline_parallel_size=2, zero_stage=3), TWO, "cpu:0, cpu:1: layer 0", "worker cpu:1"),    # two pipelines
                 (dict(TWO, pipeline_parallel_size=2, zero_stage=3, collective="tcp"), TWO, "cpu:0, cpu:1: layer 0", "worker cpu:1")]
        for settings, alone, says, name in cells:
            with self.subTest(killed=name, **settings):
                want = self.undisturbed(alone)
                run = self.start(settings)
                try:
                    run.wait_step(1)
                    plan = subprocess.run([ROLLCALL, "train", os.path.join(run.dir, "run.yaml"), "--dry-run"], capture_output=True, text=True)
                    self.assertIn(says, plan.stdout, plan.stderr)
                    self.assertRegex(plan.stdout, "trainers:       each (on 2 devices|a pipeline of 2 stages)" if settings["num_trainers"] > 1
                                     else "trainer:        (on 2 devices|a pipeline of 2 stages)")
                    pid = run.processes().get(name)
                    if pid:    # otherwise it was too late
                        os.kill(pid, signal.SIGKILL)
                    self.assertEqual(self.finish(run), want)
                    for step, value in self.metric(run, "train/sampler_trainer_diff").items():
                        self.assertTrue(value == 0 or settings.get("n_behind"), step)    # samples of older weights differ
                    if "pipeline_parallel_size" in settings:
                        self.assertEqual(set(self.metric(run, "train/stages").values()), {2})
                        idle, *each = (self.metric(run, "time/stages_idle_s" + n) for n in ("", "/0", "/1"))
                        self.assertEqual(idle, {step: max(stage[step] for stage in each) for step in idle})
                finally:
                    run.kill()

    def test_no_trainer_holds_whole_weights_that_nobody_reads(self):
        one, teams = dict(TWO, sum_parts=4), dict(TWO, tensor_parallel_size=2, producer_tensor_parallel_size=2)
        slices = 1 / 2 + 1 / 2    # of what is trained, and to sample with
        for settings, alone, want in ((teams, one, {0: slices, 1: slices}),
                                      (dict(teams, n_behind=1, zero_stage=2, weights="copy"), dict(one, n_behind=1), {0: slices + 1, 1: slices}),    # a version
                                      (dict(teams, n_behind=1, zero_stage=3), dict(one, n_behind=1), {}),
                                      (dict(TWO, producer_tensor_parallel_size=2, zero_stage=3), one, {}),    # places for pieces are as much as these layers
                                      (dict(TWO, producer_tensor_parallel_size=2, zero_stage=3, collective="tcp"), one, {}),
                                      (dict(APART, tensor_parallel_size=2), one, {0: 1 / 2, 1: 1 / 2}),
                                      (dict(APART, tensor_parallel_size=2, zero_stage=3, weights="copy"), one, {}),
                                      (dict(ONE, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, n_behind=1, pipeline_parallel_size=2,
                                            producer_tensor_parallel_size=2), dict(one, n_behind=1), {0: slices})):
            with self.subTest(**settings):
                run, held = self.held(settings)
                try:
                    for k, part in want.items():    # norms are on all devices, and stages are not alike
                        self.assertAlmostEqual(held[k], part, delta=0.1, msg=held)
                    self.assertEqual(self.finish(run), self.undisturbed(alone))
                finally:
                    run.kill()

    def test_the_first_trainer_gives_weights_out_of_its_slices_and_stages(self):
        """To samplers on one device and in slices, and has nothing whole for it but the versions that it keeps; whoever is killed: the trainer whose
        slices they are, another one that has shards of them, or a sampler that may be reading them."""
        one = dict(ONE, num_inferencer=1, inference_batch_size=8, inference_microbatch_size=8, sum_parts=4)
        apart, tp, pp, ptp = dict(one, placement="apart"), dict(tensor_parallel_size=2), dict(pipeline_parallel_size=2), dict(producer_tensor_parallel_size=2)
        two = dict(TWO, sum_parts=4, placement="apart")
        cells = [(dict(apart, **tp, weights="copy"), 1 / 2, "worker cpu:0"),
                 (dict(apart, **tp, **ptp, weights="copy"), 1 / 2, "worker cpu:1"),
                 (dict(apart, **tp, **pp, weights="nccl"), 1 / 4, None),
                 (dict(apart, **pp, **ptp, weights="copy", n_behind=1), 1 / 2 + 1, "worker cpu:0"),
                 (dict(apart, **tp, **pp, **ptp, weights="nccl", n_behind=1), 1 / 4 + 1, None),
                 (dict(apart, **tp, **pp, weights="files"), 1 / 4, None),
                 (dict(two, **tp, zero_stage=2, weights="copy"), 1 / 2, "worker cpu:1"),
                 (dict(two, **tp, collective="tcp", zero_stage=1, weights="copy"), 1 / 2, None),
                 (dict(two, **tp, zero_stage=3, weights="copy"), None, "worker cpu:1"),    # places for pieces are as much as these layers
                 (dict(two, **tp, **pp, zero_stage=3, weights="copy", n_behind=1), None, "worker cpu:1"),
                 (dict(two, **tp, **ptp, zero_stage=3, weights="files"), None, None)]
        for settings, want, name in cells:
            with self.subTest(killed=name, **settings):
                run, held = self.held(settings)
                try:
                    if want:    # norms are on all devices, and stages are not alike
                        self.assertAlmostEqual(held[0], want, delta=0.13, msg=held)
                    else:    # beyond what the second trainer has, a version
                        self.assertAlmostEqual(held[0] - held[1], settings.get("n_behind", 0), delta=0.1, msg=held)
                    run.wait_step(1)
                    pid = run.processes().get(name)
                    if pid:    # at any moment; otherwise it was too late
                        os.kill(pid, signal.SIGKILL)
                    alone = dict(two if settings["num_trainers"] == 2 else apart, n_behind=settings.get("n_behind", 0))
                    self.assertEqual(self.finish(run), self.undisturbed(alone))
                    for step, value in self.metric(run, "train/sampler_trainer_diff").items():
                        self.assertTrue(value == 0 or settings.get("n_behind"), step)    # samples of older weights differ
                finally:
                    run.kill()

    def test_the_first_trainer_gives_weights_out_of_all_shards(self):
        """And has, beyond what the second one has, the versions that it keeps for others, and nothing where they read the shards where they lie."""
        shards = dict(APART, zero_stage=3)
        for settings, more in ((shards, 0), (dict(shards, weights="copy"), 0), (dict(shards, weights="copy", n_behind=1), 1),
                               (dict(BEHIND, zero_stage=3, weights="copy"), 2), (dict(TWO, zero_stage=3, weights="copy", n_behind=1), 1)):
            with self.subTest(**settings):
                run, held = self.held(settings)
                try:
                    self.assertAlmostEqual(held[0] - held[1], more, delta=0.1, msg=held)
                    run.wait_step(1)
                    pid = run.processes().get("worker cpu:1") if settings.get("n_behind") else None
                    if pid:    # whose shards they are: it dies at any moment
                        os.kill(pid, signal.SIGKILL)
                    same = {name: value for name, value in settings.items() if name not in ("zero_stage", "weights")}
                    self.assertEqual(self.finish(run), self.undisturbed(same))
                finally:
                    run.kill()

    def test_whoever_is_killed_while_samplers_read_the_shards_changes_nothing(self):
        """A sampler is about to open the parts, or has read them and not said so, when one whose they are dies, or itself."""
        settings = dict(APART, zero_stage=3, weights="copy")
        want = self.undisturbed(APART)
        for point in ("publishing", "taken"):
            for name in ("worker cpu:0", "worker cpu:1", "worker cpu:2"):
                with self.subTest(point=point, killed=name):
                    holds = Holds(os.path.join(self.task.dir, f"hold-{point}-{name[-1]}"))
                    holds.arm("worker cpu:2", point)
                    holds.arm("worker cpu:3", "loading")    # or it might sample all there is, and the other one nothing
                    run = self.start(dict(settings, env=dict(RC_TEST_HOLD=holds.dir)))
                    try:
                        for before in range(3):    # from the first time on, so that the run does not end before the third
                            self.until(f"a sampler is held, {before} times before", lambda: holds.held("worker cpu:2", point), run)
                            if before < 2:
                                holds.arm("worker cpu:2", point)
                                holds.release("worker cpu:2", point, holds.held("worker cpu:2", point))
                        holds.disarm("worker cpu:3", "loading")
                        os.kill(run.processes()[name], signal.SIGKILL)
                        holds.disarm("worker cpu:2", point)
                        self.assertEqual(self.finish(run), want)
                    finally:
                        run.kill()

    def test_external_engines_come_before_the_trainers_further_devices(self):
        file = self.task.run_file("engine.yaml", backend="vllm", engine_url="http://127.0.0.1:9", tensor_parallel_size=2)
        plan = subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True)
        for line in ("cpu:0: trainer 0\n", "engine:0: producer 0, vllm", "cpu:1: with trainer 0\n"):
            self.assertIn(line, plan.stdout, plan.stderr)

    def test_a_team_that_cannot_be_is_refused_with_the_nearest_one(self):
        p, t, pp = "producer_tensor_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"
        for name, n, devices, says in ((p, 8, "auto", "heads of keys and values, .* cannot be cut over 8 devices; 4 devices are possible"),
                                       (p, 2, "cpu:0", r"'devices' names 1 \(cpu:0\), but .* producer_tensor_parallel_size 2 need 2"),
                                       (t, 4, "auto", "heads of keys and values, .* over 4 devices to be trained; 2 devices are possible"),
                                       (t, 2, "cpu:0", r"'devices' names 1 \(cpu:0\), but .* 'shared', tensor_parallel_size 2, .* need 2"),
                                       (pp, 3, "auto", "2 layers cannot be cut into 3 stages of at least one layer; at most 2 are possible"),
                                       (pp, 2, "cpu:0", r"'devices' names 1 \(cpu:0\), but .* pipeline_parallel_size 2 .* need 2")):
            file = self.task.run_file("team.yaml", devices=devices, **{name: n})
            out = subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True)
            self.assertEqual(len(out.stderr.strip().splitlines()), 1, out.stderr)
            self.assertRegex(out.stderr, says)
            self.assertNotEqual(out.returncode, 0)

    def test_the_starter_ends_in_the_same_bytes_with_any_trainers_at_any_zero_stage(self):
        starter = os.path.join(ROOT, "build/starter")
        self.assertTrue(os.path.exists(os.path.join(starter, "config.json")), "run examples/make_starter.sh first")
        layouts = [(1, 0, 1, 1, 1, "auto")] + [(t, zero, 1, 1, 1, "auto") for t in (2, 4) for zero in range(4)]
        layouts += [(2, 0, 1, 1, 1, "tcp"), (2, 1, 1, 1, 1, "tcp"), (2, 2, 1, 1, 1, "local"), (4, 2, 1, 1, 1, "tcp"), (4, 3, 1, 1, 1, "tcp")] + [(1, 0, tp, 1, 4, "auto") for tp in (1, 2)]
        layouts += [(1, 0, 1, 3, 1, "auto")]    # a stage for each layer
        layouts += [(1, 0, 2, 3, 4, "auto"), (2, 2, 2, 2, 4, "auto"), (2, 0, 2, 1, 4, "tcp"), (2, 1, 1, 2, 1, "auto"), (2, 0, 1, 3, 1, "tcp")]
        layouts += [(2, 1, 2, 1, 4, "tcp"), (2, 2, 1, 3, 1, "local"), (2, 3, 2, 1, 4, "local"), (4, 3, 1, 2, 1, "tcp"), (2, 3, 2, 2, 4, "tcp")]    # by bytes alone
        layouts = [(*layout, 1) for layout in layouts]
        layouts += [(1, 0, 1, 1, 1, "auto", 3), (4, 1, 1, 1, 1, "auto", 3), (2, 3, 1, 1, 1, "tcp", 3), (2, 2, 1, 3, 1, "auto", 3), (2, 3, 1, 3, 1, "tcp", 3)]    # of 11 and of 12 micro-batches
        want = {}
        for t, zero, tp, pp, parts, way, group in layouts:
            with self.subTest(trainers=t, zero_stage=zero, tensor_parallel_size=tp, pipeline_parallel_size=pp, sum_parts=parts, collective=way, grad_group=group):
                run = super().start("--max-steps", "2", model=starter, num_trainers=t, num_inferencer=t, zero_stage=zero,
                                    tensor_parallel_size=tp, pipeline_parallel_size=pp, sum_parts=parts, collective=way,
                                    inference_batch_size=8 // t, inference_microbatch_size=8 // t, train_batch_size=8 // t,
                                    train_minibatch_size=8 // t, save_interval=2, max_prompt_tokens=48, token_budget=128 if group == 1 else 64,
                                    grad_group=group)
                try:
                    self.assertEqual(self.plans(run, "zero_stage"), {str(zero)})
                    code, last = run.wait()
                    self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 2), run.logs())
                    got = run.weights(2)
                    self.assertTrue(group == 1 or t > 1 or {n % group for n in self.metric(run, "train/micro_batches").values()} == {2, 0})
                    self.assertEqual(got, want.setdefault((parts, group), got))
                finally:
                    run.kill()
        self.assertEqual(len(set(map(str, want.values()))), len(want))    # what is grouped otherwise ends in other bytes

    def test_two_rollout_steps_behind_repeats_and_a_token_is_as_old_as_the_plan_says(self):
        holds = Holds(self.task.path("behind-holds"))
        holds.arm("worker cpu:0", "training")
        run = self.start(dict(BEHIND, env=dict(RC_TEST_HOLD=holds.dir)))
        try:
            # Trainers wait here until generation is as far ahead as it may be, however busy the machine is.
            self.until("two rollout steps are sampled ahead", lambda: holds.held("worker cpu:0", "training")
                       and run.journal_number("select count(*) from item where rollout_step in (1, 2) and fate > 0") == 16, run)
            holds.disarm("worker cpu:0", "training")
            self.assertEqual(self.finish(run), self.undisturbed(BEHIND))
            ages = self.metric(run, "train/age_max")
            self.assertEqual(max(ages.values()), (2 + 1) * 2 - 1, ages)
            depth = self.metric(run, "rollout/buffer_depth")    # groups there when a batch of 4 has been trained on
            self.assertGreater(max(depth.values()), 8, depth)    # more than one rollout step: generation was ahead
            plan = subprocess.run([ROLLCALL, "train", os.path.join(run.dir, "run.yaml"), "--dry-run"], capture_output=True, text=True)
            self.assertIn("a token is at most 5 optimizer steps old", plan.stdout)
            self.assertIn("placement:      cpu:0: trainer 0\n", plan.stdout)
            self.assertRegex(plan.stdout, r"memory: +\S+ of \S+ GB of cpu:0: weights \S+, gradient")
            self.assertIn(" zero_stage 1 (auto)\n", plan.stdout)
            self.assertIn("layout:         2 trainers on 1 device each; 2 producers on 1 device each; exchange: auto\n", plan.stdout)
            self.assertIn("                cpu:3: producer 1\n", plan.stdout)
        finally:
            run.kill()

    def test_producers_generate_while_trainers_train_and_the_screen_shows_it(self):
        holds = Holds(self.task.path("overlap-holds"))
        producers = ("worker cpu:2", "worker cpu:3")

        def until(found):
            end = time.monotonic() + LIMIT
            while not (what := found()):
                self.assertLess(time.monotonic(), end, run.logs())
                time.sleep(0.005)
            return what

        def trainer():
            return holds.held("worker cpu:0", "training")

        def producer():
            return next((name for name in producers if holds.held(name, "generating")), None)

        holds.arm("worker cpu:0", "training")
        run = Run(self.task, "overlap", self.task.run_file(**dict(APART, n_behind=1, heartbeat_s=0.05)), ["--max-steps", "100000"],
                  env=dict(RC_TEST_HOLD=holds.dir))
        try:
            # The first step waits until the next one's samples are there. What is sampled then needs the first step's weights, so its
            # samplers can be held without keeping the trainers from their second step.
            pid = until(trainer)
            until(lambda: run.journal_number("select count(*) from item where rollout_step = 1 and fate > 0") == 8)
            for name in producers:
                holds.arm(name, "generating")
            holds.arm("worker cpu:0", "training")
            holds.release("worker cpu:0", "training", pid)
            held = until(lambda: producer() if trainer() else None)
            self.assertEqual(run.step(), 1)

            def shown():
                status = run.ctl("--json", "status")
                now = {p["name"]: p for p in json.loads(status.stdout)["processes"]} if status.returncode == 0 else {}
                phase = {name: p["phase"] for name, p in now.items()}
                both = phase.get("worker cpu:0") == "training" and phase.get(held) == "generating"
                return {name: p["plays"] for name, p in now.items() if "plays" in p} if both else None

            self.assertEqual(until(shown), {"worker cpu:0": "trainer 0", "worker cpu:1": "trainer 1", "worker cpu:2": "producer 0",
                                     "worker cpu:3": "producer 1"})
        finally:
            run.kill()

    def test_a_trainer_killed_at_any_moment_changes_nothing(self):
        """Neither what it kept of the optimizer's state: the checkpoints hold all of it."""
        rng = random.Random(7 if not LONG else time.time_ns())
        cells = [(dict(TWO, zero_stage=3), "worker cpu:1"), (BEHIND, "worker cpu:0"), (dict(TWO, zero_stage=2), "worker cpu:1"),
                 (dict(TWO, collective="tcp"), "worker cpu:0"), (dict(BEHIND, zero_stage=3), "worker cpu:0"), (TWO, "worker cpu:0"), (dict(BEHIND, zero_stage=0), "worker cpu:1")]
        for settings, name in cells * 10 if LONG else cells[:5]:
            step, wait_s = rng.randrange(0, STEPS - 4), rng.random() * 0.1
            with self.subTest(process=name, step=step, wait_s=wait_s):
                want = self.undisturbed({name: value for name, value in settings.items() if name not in ("zero_stage", "collective")})
                run = self.start(settings)
                try:
                    run.wait_step(step)
                    time.sleep(wait_s)    # a random moment, not a wait for something
                    pid = run.processes().get(name)
                    if pid:    # otherwise it was too late
                        os.kill(pid, signal.SIGKILL)
                    self.assertEqual(self.finish(run), want)
                finally:
                    run.kill()

    def test_a_run_goes_on_with_other_workers_and_says_what_it_keeps(self):
        one = dict(num_trainers=1, num_inferencer=1, inference_batch_size=8, train_batch_size=8, train_minibatch_size=8)
        for begin, flags, same, says in (
                (one, ["-t", "4", "-i", "4", "-zero", "3"], True, "'num_trainers' is 4 instead of 1"),
                (one, ["-i", "2"], True, "'inference_batch_size' is 4 instead of 8, so that a rollout step stays 8 prompts"),
                (one, ["-t", "2", "-i", "2", "--placement", "apart"], True, "'num_trainers' is 2 instead of 1"),
                (dict(APART, zero_stage=3), ["-t", "1", "-i", "1", "--placement", "shared"], True, "'num_trainers' is 1 instead of 2"),
                (dict(one, sum_parts=4), ["-ptp", "2"], True, "'producer_tensor_parallel_size' is 2 instead of 1"),
                (dict(one, sum_parts=4), ["-tp", "2", "-pp", "2", "-t", "2", "-i", "2", "-zero", "3"], True, "'tensor_parallel_size' is 2 instead of 1"),
                (dict(TWO, tensor_parallel_size=2, zero_stage=3), ["-t", "1", "-i", "1", "-tp", "1", "--sum-parts", "4"], True, "'tensor_parallel_size' is 1 instead of 2"),
                (one, ["-pp", "2", "-t", "2", "-i", "2", "-zero", "1"], True, "'pipeline_parallel_size' is 2 instead of 1"),
                (dict(one, kl_coeff=0.01, train_microbatch_size=1), ["-t", "2", "-i", "2", "--grad-group", "2"], False, "'grad_group' is 2 instead of 1: not the same bytes"),
                (one, ["-ptp", "2", "--sum-parts", "2"], False, "'sum_parts' is 2 instead of 1: not the same bytes")):
            whole = self.undisturbed(begin)
            with self.subTest(flags=flags):
                type(self).n += 1
                name = f"run-{self.n}"
                first = Run(self.task, name, self.task.run_file(**begin), ["--max-steps", str(STEPS // 2)])
                code, last = first.wait()
                self.assertEqual((code, last.get("step")), (0, STEPS // 2), first.logs())
                run = Run(self.task, name, resume=True, extra=["--max-steps", str(STEPS), *flags])
                try:
                    got = self.finish(run)
                    notes = written(run.errors)
                    self.assertIn(says, notes)
                    self.assertEqual("the weights will have the same bytes as in a run without this change" in notes, same)
                    self.assertEqual(got[0] == whole[0], same)
                    self.assertEqual([row[:2] for row in got[1]], [row[:2] for row in whole[1]])    # the same prompts
                finally:
                    run.kill()
                    first.kill()

    def test_a_trainer_that_waits_for_a_stopped_one_says_so(self):
        run = Run(self.task, "still", self.task.run_file(**APART), ["--max-steps", "100000"])
        try:
            run.wait_step(2)
            pid = run.processes()["worker cpu:1"]
            os.kill(pid, signal.SIGSTOP)
            end, line = time.monotonic() + LIMIT, ""
            while "trainer 1" not in line and time.monotonic() < end:
                status = run.ctl("status").stdout.splitlines()
                line = next((text for text in status if text.startswith("worker cpu:0")), "")
            self.assertIn("trainer 1", line)
            self.assertIn("trainer 1 (cpu:1)", line)
            os.kill(pid, signal.SIGCONT)
            run.wait_step(run.step() + 2)    # and goes on
            told = {name: self.metric(run, name) for name in
                    ("train/ranks", "train/zero_stage", "train/late_rank", "time/late_rank_s", "time/ranks_exposed_s",
                     "time/ranks_idle_s", "time/ranks_idle_s/0", "time/ranks_idle_s/1", "perf/ranks_reduce_gb",
                     "perf/ranks_gather_gb", "perf/ranks_sent_gb")}
            self.assertEqual((set(told["train/ranks"].values()), set(told["train/zero_stage"].values())), ({2}, {1}))
            # a wait is reported after 0.1 s: for its part of the sum, or for what it sends
            late = [s for step, s in told["time/late_rank_s"].items() if told["train/late_rank"].get(step) == 1]
            self.assertGreater(max(late + list(told["time/ranks_exposed_s"].values())), 0.09, told)
            for step in told["train/ranks"]:    # the run goes on; all metrics were read after this one
                self.assertEqual(told["time/ranks_idle_s"][step], max(told[f"time/ranks_idle_s/{q}"][step] for q in (0, 1)))
                sent = told["perf/ranks_reduce_gb"][step] + told["perf/ranks_gather_gb"][step]
                self.assertAlmostEqual(told["perf/ranks_sent_gb"][step], sent, places=12)
                self.assertGreater(told["perf/ranks_gather_gb"][step], 0)
        finally:
            run.kill()


if __name__ == "__main__":
    unittest.main()
