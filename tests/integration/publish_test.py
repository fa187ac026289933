"""tags: limit=600

Weights from the trainer to producers on devices of their own: every way gives the same run, whoever dies.
PUBLISH_DEVICES=cuda:0,cuda:1 has it on GPUs, with one producer."""
import os
import random
import re
import signal
import time
import unittest
from run_tools import LIMIT, Holds, RunCase

STEPS = 8
GPUS = os.environ.get("PUBLISH_DEVICES")
DEVICES = (GPUS or "cpu:0,cpu:1,cpu:2").split(",")
TRAINER, *PRODUCERS = [f"worker {d}" for d in DEVICES]
APART = dict(num_trainers=1, num_inferencer=len(PRODUCERS), placement="apart", inference_batch_size=8 // len(PRODUCERS),
             inference_microbatch_size=4, train_batch_size=4, train_minibatch_size=4)    # two optimizer steps a rollout step
if GPUS:
    APART["devices"] = GPUS


class Publish(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = {}

    def start(self, env=None, max_steps=STEPS, **settings):
        return super().start("--max-steps", str(max_steps), env=env, **{**APART, **settings})

    def held(self, run, holds, process, point):
        end = time.monotonic() + LIMIT
        while not (pid := holds.held(process, point)):
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, f"{process} @ {point}\n" + run.logs())
            time.sleep(0.01)
        return pid

    def log(self, run, process):
        with open(os.path.join(run.dir, "logs", re.sub("[ :]", "-", process) + ".log")) as f:
            return f.read()

    def by_files(self, n_behind):
        if n_behind not in self.known:
            run = self.start(n_behind=n_behind, weights="files")
            try:
                self.known[n_behind] = self.finish(run, STEPS)
            finally:
                run.kill()
        return self.known[n_behind]

    def test_every_way_gives_the_same_bytes_and_says_that_hashes_are_equal(self):
        for n_behind in (0, 2):
            for way in ("copy", "nccl"):
                with self.subTest(n_behind=n_behind, way=way):
                    run = self.start(n_behind=n_behind, weights=way)
                    try:
                        self.assertEqual(self.finish(run, STEPS), self.by_files(n_behind))
                        self.assertIn(f"weights go to other workers by {way}", self.log(run, TRAINER))
                        came = {int(v) for p in PRODUCERS
                                for v in re.findall(r"weights of version (\d+) are here, equal on both sides", self.log(run, p))}
                        self.assertLessEqual({row[4] for row in run.ledger()}, came)
                        self.assertEqual([f for f in os.listdir(os.path.join(run.dir, "sock")) if re.match("weights-", f)], [])
                    finally:
                        run.kill()

    def test_a_trainer_or_producer_killed_at_any_moment_changes_nothing(self):
        rng = random.Random(11)
        for way in ("copy", "nccl"):
            for name in (TRAINER, PRODUCERS[0]):
                step, wait_s = rng.randrange(1, STEPS - 3), rng.random() * 0.1
                with self.subTest(way=way, process=name, step=step, wait_s=wait_s):
                    run = self.start(n_behind=1, weights=way, save_interval=2)
                    try:
                        run.wait_step(step)
                        time.sleep(wait_s)    # a random moment, not a wait for something
                        os.kill(run.processes()[name], signal.SIGKILL)
                        self.assertEqual(self.finish(run, STEPS), self.by_files(1))
                    finally:
                        run.kill()

    def test_who_is_killed_in_the_middle_of_a_version_leaves_no_mixture(self):
        """The bytes are in a producer's weights, or in those of its two devices, and it has not said so; with n_behind 0 they are read out of
        the trainer's own weights. One of both is killed then. The sampler's log-probs are the trainer's, and the run ends in its bytes."""
        team = dict(producer_tensor_parallel_size=2, num_inferencer=1, inference_batch_size=8)
        want = None
        for way, killed, settings in (("copy", PRODUCERS[0], team), ("copy", TRAINER, team), ("nccl", PRODUCERS[0], dict(team, producer_tensor_parallel_size=1)),
                                      ("nccl", TRAINER, dict(team, producer_tensor_parallel_size=1))):
            if GPUS and settings["producer_tensor_parallel_size"] > 1:
                continue
            with self.subTest(way=way, killed=killed):
                holds = Holds(self.task.path(f"holds-{way}-{killed[-1]}"))
                holds.arm(PRODUCERS[0], "taken")    # from the first version on, so that the run does not end before the third
                devices = DEVICES[:2 + (settings["producer_tensor_parallel_size"] > 1)]
                run = self.start(n_behind=0, weights=way, save_interval=2, sum_parts=4, devices=",".join(devices),
                                 env={"RC_TEST_HOLD": holds.dir}, **settings)
                try:
                    for before in range(3):
                        producer = self.held(run, holds, PRODUCERS[0], "taken")
                        if before < 2:
                            holds.arm(PRODUCERS[0], "taken")
                            holds.release(PRODUCERS[0], "taken", producer)
                    os.kill(run.processes()[killed], signal.SIGKILL)
                    if killed == TRAINER:
                        holds.release(PRODUCERS[0], "taken", producer)
                    done = self.finish(run, STEPS)
                    want = want or done
                    self.assertEqual(done, want)
                    for line in run.output():
                        if line.get("event") == "step":
                            self.assertIn(line["metrics"].get("train/sampler_trainer_diff"), (0, None), line["step"])
                finally:
                    run.kill()

    def test_weights_of_an_undone_step_are_not_sampled_with_once_a_knob_has_changed(self):
        """Nothing is saved, so that a lost trainer goes back to the start. Its producer is held in the middle of what it samples
        with the weights of step 4, which is made again meanwhile, with another learning rate."""
        producer, undone = PRODUCERS[0], 4
        for way in ("files", "copy", "nccl"):
            with self.subTest(way=way):
                holds = Holds(self.task.path(f"holds-{way}"))
                holds.arm(producer, "publishing")
                run = self.start(num_inferencer=1, inference_batch_size=8, train_batch_size=8, train_minibatch_size=8, n_behind=0,
                                 weights=way, save_interval=1000, devices=",".join(DEVICES[:2]), env={"RC_TEST_HOLD": holds.dir})
                try:
                    for version in range(undone + 1):    # which it takes next
                        pid = self.held(run, holds, producer, "publishing")
                        holds.arm(producer, "publishing" if version < undone else "generating")
                        holds.release(producer, "publishing", pid)
                    pid = self.held(run, holds, producer, "generating")
                    holds.arm(TRAINER, "loading")
                    os.kill(run.processes()[TRAINER], signal.SIGKILL)
                    trainer = self.held(run, holds, TRAINER, "loading")
                    done = run.ctl("set", "learning_rate=0.002")
                    self.assertIn("from optimizer step 1 on", done.stdout, done.stderr)
                    holds.release(TRAINER, "loading", trainer)
                    holds.release(producer, "generating", pid)
                    self.finish(run, STEPS)
                    differs = {line["step"]: line["metrics"].get("train/sampler_trainer_diff") for line in run.output()
                               if line.get("event") == "step"}
                    self.assertEqual(differs[undone + 1], 0)
                    for step in range(undone + 2, STEPS + 1):
                        self.assertIn(differs[step], (0, None))    # None: no group had a spread
                finally:
                    run.kill()


if __name__ == "__main__":
    unittest.main(verbosity=2)
