"""tags: limit=600

Runs that train an adapter: what they save, that they repeat to the byte whoever dies and whoever trains, and what merging gives."""
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import unittest
from run_tools import LIMIT, ROLLCALL, Run, RunCase

STEPS = 8
ADAPTER = "adapter_model.safetensors"
ONE = dict(lora_rank=4, lora_alpha=12, inference_batch_size=8, train_batch_size=8, train_minibatch_size=8)
# two producers, which receive the adapter, and a reference, which is the base
TWO = dict(ONE, num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4,
           train_minibatch_size=4)
APART = dict(TWO, num_trainers=1, train_batch_size=8, train_minibatch_size=8, placement="apart", n_behind=1, kl_coeff=0.1)


def header(path):
    """The tensors of a safetensors file: {name: (dtype, shape)}."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return {k: (v["dtype"], v["shape"]) for k, v in json.loads(f.read(n)).items() if k != "__metadata__"}


def rollcall(*args, text=None):
    return subprocess.run([ROLLCALL, *map(str, args)], capture_output=True, text=True, input=text, timeout=LIMIT)


class Lora(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = {}

    def begin(self, settings):
        return self.start("--max-steps", str(STEPS), **settings)

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        return run.weights(STEPS, ADAPTER), run.ledger()

    def undisturbed(self, settings):
        """(the run, its adapter and ledger) of a run to the end."""
        key = json.dumps(settings, sort_keys=True)
        if key not in self.known:
            run = self.begin(settings)
            self.known[key] = run, self.finish(run)
        return self.known[key]

    def checkpoint(self, settings, step=STEPS):
        return os.path.join(self.undisturbed(settings)[0].dir, f"checkpoints/step-{step:06d}")

    def test_a_checkpoint_holds_the_adapter_with_pefts_names_and_its_state_alone(self):
        path = self.checkpoint(ONE)
        tensors = header(os.path.join(path, ADAPTER))
        with open(os.path.join(path, "adapter_config.json")) as f:
            config = json.load(f)
        self.assertEqual({k: config[k] for k in ("peft_type", "r", "lora_alpha", "bias", "base_model_name_or_path")},
                         {"peft_type": "LORA", "r": 4, "lora_alpha": 12, "bias": "none", "base_model_name_or_path": self.task.path("model")})
        modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.assertEqual(config["target_modules"], modules)
        layers = {name.split(".")[4] for name in tensors}
        self.assertEqual(len(tensors), len(layers) * len(modules) * 2)
        for name, (_, shape) in tensors.items():
            self.assertRegex(name, r"^base_model\.model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.lora_[AB]\.weight$")
            self.assertIn(4, shape)
        self.assertFalse(os.path.exists(os.path.join(path, "model.safetensors")))
        state = header(os.path.join(path, "state/trainer.safetensors"))
        most = sum(a * b for _, (a, b) in tensors.values()) * 2    # tensors begin at multiples of 128 elements
        for name, (_, shape) in state.items():
            self.assertLess(shape[0], most, name)
        self.assertNotEqual(self.undisturbed(ONE)[0].weights(4, ADAPTER), self.undisturbed(ONE)[1][0])

    def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bytes(self):
        settings = dict(ONE, n_behind=1, kl_coeff=0.1)
        run = self.begin(settings)
        run.wait_step(5)
        run.kill()
        again = Run(self.task, os.path.basename(run.dir), resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again), self.undisturbed(settings)[1])

    def test_any_number_of_trainers_ends_in_the_same_bytes_and_samples_as_it_trains(self):
        whole = self.undisturbed(ONE)[1]
        for zero in ("0", "2", "3"):    # an adapter is never cut: 3 is 2
            run = self.begin(dict(TWO, zero_stage=zero))
            self.assertEqual(self.finish(run), whole)
            diffs = [line["metrics"].get("train/sampler_trainer_diff") for line in run.told("step")]
            self.assertEqual({d for d in diffs if d is not None}, {0})    # a step whose groups are all alike has none

    def test_producers_get_the_adapter_alone_and_may_die(self):
        """By file and through shared memory."""
        base = os.path.getsize(self.task.path("model/model.safetensors"))
        want = self.undisturbed(dict(APART, weights="copy"))[1]
        run = self.begin(dict(APART, weights="files"))
        sizes = set()
        killed = []

        def disturbed():
            for path in glob.glob(os.path.join(run.dir, "sock/weights-*-*")):
                try:
                    sizes.add(os.path.getsize(path))
                except FileNotFoundError:    # taken by then
                    pass
            if not killed and run.step() >= 2:
                for name in ("worker cpu:0", "worker cpu:2"):    # the trainer, and a producer
                    pid = run.processes().get(name)
                    if pid:
                        killed.append(pid)
                        os.kill(pid, signal.SIGKILL)
            return killed and sizes and run.process.poll() is not None
        self.until("two workers are killed and the run ends", disturbed, run)
        self.assertEqual(self.finish(run), want)
        self.assertEqual(len(killed), 2)
        self.assertLess(max(sizes), base / 2)

    def test_tools_take_an_adapter_and_its_merged_model_is_the_same_model(self):
        path, merged = self.checkpoint(ONE), self.task.path("merged")
        done = rollcall("merge", "--adapter", path, "--out", merged)
        self.assertEqual((done.returncode, json.loads(done.stdout)), (0, {"out": merged, "rank": 4}), done.stderr)
        self.assertEqual(header(os.path.join(merged, "model.safetensors")), header(self.task.path("model/model.safetensors")))
        line = json.dumps({"ids": list(range(5, 45)), "prompt_len": 1}) + "\n"

        def logprobs(model):
            done = rollcall("logprobs", "--model", model, text=line)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["logprobs"]
        apart, together, base = (logprobs(model) for model in (path, merged, self.task.path("model")))
        # fp32: W + s B A and W x + s B A x differ in roundings of about 1e-7
        self.assertLess(max(abs(a - b) for a, b in zip(apart, together)), 1e-4)
        self.assertGreater(max(abs(a - b) for a, b in zip(apart, base)), 1e-3)
        again = rollcall("merge", "--adapter", path, "--out", merged)
        self.assertEqual(again.returncode, 1)
        self.assertIn("already exists; --force overwrites it", again.stderr)

    def test_a_run_may_start_from_an_adapter(self):
        path = self.checkpoint(ONE)
        run = self.begin(dict(lora_adapter=path, learning_rate=1e-9))
        self.finish(run)
        with open(os.path.join(run.dir, f"checkpoints/step-{STEPS:06d}/adapter_config.json")) as f:
            self.assertEqual(json.load(f)["lora_alpha"], 12)
        before, after = (os.path.join(p, ADAPTER) for p in (path, os.path.join(run.dir, f"checkpoints/step-{STEPS:06d}")))
        self.assertEqual(header(before), header(after))

    def test_the_adapter_that_a_run_started_from_must_stay_what_it_was(self):
        path = self.task.path("began")
        shutil.copytree(self.checkpoint(ONE), path)
        self.finish(self.begin(dict(lora_adapter=path)))
        run = f"run-{self.n}"
        shutil.copy(os.path.join(self.checkpoint(ONE, 4), ADAPTER), path)
        done = rollcall("train", "--batch", "--resume", os.path.join(self.task.path("runs"), run), "--max-steps", str(STEPS + 1))
        self.assertEqual(done.returncode, 1)
        self.assertIn("adapter: not what the run", done.stderr)

    def test_what_does_not_go_with_an_adapter_is_refused_in_a_sentence(self):
        path = self.checkpoint(ONE)
        cases = [(dict(lora_rank=4, lora_dropout=0.05), "'lora_dropout' is 0.05; only 0 works"),
                 (dict(lora_rank=4, listen="127.0.0.1:0"), "'listen' and 'lora_rank' do not go together"),
                 (dict(lora_rank=4, lora_target_modules="q_proj,lm_head"), "'lm_head' is not a target module"),
                 (dict(lora_rank=2000), "lora_rank"),
                 (dict(lora_adapter=self.task.path("none")), "cannot find the adapter"),
                 (dict(lora_adapter=self.task.path("model")), "adapter_config.json"),
                 (dict(lora_adapter=path, lora_rank=8), "'lora_rank' is 8, but the adapter")]
        for k, (settings, says) in enumerate(cases):
            done = rollcall("train", "--batch", self.task.run_file(f"refused-{k}.yaml", **settings), "--dry-run")
            self.assertNotEqual(done.returncode, 0, settings)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn(says, done.stderr)

    def test_a_dry_run_shows_what_an_adapter_takes(self):
        done = rollcall("train", self.task.run_file("dry.yaml", lora_rank=4), "--dry-run")
        self.assertRegex(done.stdout, r"memory: +\S+ of \S+ GB of cpu:0: weights \S+, gradient \S+, masters and moments \S+,")
        self.assertRegex(done.stdout, r"\n +\S+ M frozen parameters in fp32, and an adapter of rank 4 with \S+ M\n")
        self.assertIn("adapter:        shared by sampler and trainer", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
