"""tags: limit=600 long-asan

The gap at the end of a rollout step (fill_gap): the next version and its items come in beside what is still in work. The run's bytes are
those of a run that waits, whatever happens in the meantime, and it does come in.

The producer is held after each of its rounds and let go again, so that the trainer is always ahead and has the next version."""
import json
import os
import re
import signal
import threading
import unittest
from run_tools import Holds, Run, RunCase

STEPS = 6
PRODUCER, TRAINER = "worker cpu:1", "worker cpu:0"
APART = dict(devices="cpu:0,cpu:1", placement="apart", num_trainers=1, num_inferencer=1, n_behind=1, inference_batch_size=8,
             inference_microbatch_size=8, max_new_tokens=240, save_interval=1, speculate="off")


class SlowProducer:
    """Lets a producer make one round at a time, until it is stopped: then it goes on by itself, or stays held."""

    def __init__(self, holds):
        self.holds = holds
        self.over = threading.Event()
        self.holds.arm(PRODUCER, "generating")
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while not self.over.is_set():
            pid = self.holds.held(PRODUCER, "generating")
            if pid:
                self.holds.arm(PRODUCER, "generating")
                self.holds.release(PRODUCER, "generating", pid)
            self.over.wait(0.001)

    def stop(self):
        """The producer is held in its next round and stays there."""
        self.over.set()
        self.thread.join()

    def free(self):
        self.stop()
        self.holds.disarm(PRODUCER, "generating")


class Gap(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = {}

    def begin(self, name, **settings):
        """A run with the gap filled, whose producer is slow."""
        holds = Holds(self.task.path(f"holds-{name}"))
        slow = SlowProducer(holds)
        self.addCleanup(slow.free)
        settings = {"fill_gap": "on", **APART, **settings}
        run = self.start("--max-steps", str(STEPS), env={"RC_TEST_HOLD": holds.dir}, **settings)
        return run, slow

    def log(self, run, process=PRODUCER):
        path = os.path.join(run.dir, "logs", re.sub("[ :]", "-", process) + ".log")
        if not os.path.exists(path):
            return ""
        with open(path) as f:
            return f.read()

    def turns(self, run):
        """The versions that came beside others, as (new, old)."""
        return [tuple(map(int, m)) for m in re.findall(r"version (\d+) is taken beside version (\d+)", self.log(run))]

    def in_gap(self, run, n=1):
        self.until("two versions in work", lambda: len(self.turns(run)) >= n or run.process.poll() is not None, run)
        self.assertIsNone(run.process.poll(), run.logs())

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        adapter = os.path.exists(os.path.join(run.dir, f"checkpoints/step-{STEPS:06d}/adapter_model.safetensors"))
        return run.weights(STEPS, *["adapter_model.safetensors"] * adapter), run.ledger()

    def wanted(self, **settings):
        """What comes of a run that waits."""
        key = str(sorted(settings.items()))
        if key not in self.known:
            run = self.start("--max-steps", str(STEPS), **{**APART, "fill_gap": "off", **settings})
            self.known[key] = self.finish(run)
            self.assertEqual([m for m in self.gap_shares(run) if m is not None], [])
            self.assertNotIn("two versions", self.log(run))
        return self.known[key]

    def test_auto_leaves_it_on_cpus(self):
        self.wanted(fill_gap="auto")

    def gap_shares(self, run):
        return [line["metrics"].get("rollout/gap_share") for line in run.told("step")]

    def test_it_comes_in_by_every_way_and_changes_no_byte(self):
        cases = {
            "copy": dict(weights="copy"),
            "nccl": dict(weights="nccl"),
            "files": dict(weights="files"),
            "far ahead": dict(n_behind=2),
            "over-sampled": dict(over_sample_rate=0.5),
            "more at once": dict(inference_batch_size=16, inference_microbatch_size=16),
            "an adapter": dict(lora_rank=4, weights="copy"),
        }
        for name, settings in cases.items():
            with self.subTest(name):
                run, slow = self.begin(name, **settings)
                self.in_gap(run, 2)
                slow.free()
                plain = {k: v for k, v in settings.items() if k != "weights"}
                self.assertEqual(self.finish(run), self.wanted(**plain))
                shares = [m for m in self.gap_shares(run) if m is not None]
                self.assertTrue(any(0 < m <= 1 for m in shares), shares)
                for line in run.told("step"):
                    self.assertIn(line["metrics"].get("train/sampler_trainer_diff"), (0, None), line["step"])
                run.kill()

    def test_evaluations_have_their_turn_and_the_same_results(self):
        """They wait for a producer with nothing in work, which the gap must not keep from them."""
        data = self.task.path("eval.jsonl")
        with open(self.task.path("train.jsonl")) as f, open(data, "w") as out:
            out.writelines(list(f)[:11])
        settings = dict(eval_interval=4, weights="copy", eval_dataset=json.dumps({"drawn": {"path": data, "temperature": 1, "n": 3}}))
        results = "select step, set_name, n, mean from eval order by step, set_name"
        waits = self.start("--max-steps", str(STEPS), **{**APART, "fill_gap": "off", **settings})
        want = self.finish(waits), self.query(waits, results)
        run, slow = self.begin("evaluated", **settings)
        self.in_gap(run)
        slow.free()
        self.assertEqual((self.finish(run), self.query(run, results)), want)
        self.assertLessEqual({0, 4}, {row[0] for row in want[1]})

    def test_the_run_is_killed_in_the_gap_and_goes_on(self):
        run, slow = self.begin("killed")
        self.in_gap(run, 2)
        slow.stop()
        run.kill()
        run = Run(self.task, os.path.basename(run.dir), resume=True)
        self.addCleanup(run.kill)
        self.assertEqual(self.finish(run), self.wanted())

    def test_one_process_is_killed_in_the_gap(self):
        """What the only producer had of both versions is issued again, the older first; a trainer that is killed has its steps made again."""
        for name in (PRODUCER, TRAINER, "controller"):
            with self.subTest(name):
                run, slow = self.begin(f"without {name.replace(':', '')}")
                self.in_gap(run)
                slow.stop()
                os.kill(run.processes()[name], signal.SIGKILL)
                slow.free()
                self.assertEqual(self.finish(run), self.wanted())
                run.kill()

    def test_commands_in_the_gap(self):
        """A pause that waits for what is in work, and going back to where the weights of both versions are not made yet."""
        for name, words in (("pause", [("pause", "--depth", "drain"), ("resume",)]), ("back", [("rollback", "1")])):
            with self.subTest(name):
                run, slow = self.begin(name)
                self.in_gap(run, 2)
                for command in words:    # the producer is slow, so that the run does not end before
                    self.ok(run, *command)
                slow.free()
                self.assertEqual(self.finish(run), self.wanted())
                run.kill()


if __name__ == "__main__":
    unittest.main()
