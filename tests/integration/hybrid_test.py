"""Runs that train a model of gated delta nets and attention: sampler and trainer agree to the bit, one device, two and a killed run end with
the same bytes in the layout that was loaded, and what it cannot do is refused."""
import json
import os
import shutil
import subprocess
import unittest
from run_tools import LIMIT, ROLLCALL, Run, RunCase

STEPS = 6
VISION = b"\1\2\3\4\5\6\7\x08"
ONE = dict(save_interval=2)
TWO = dict(ONE, num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4,
           train_minibatch_size=4)


def wrap(model):
    """Make the directory that of a model of images and text, as Qwen3.5 is published: other names, and a tensor of a vision tower."""
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as f:
        header, data = json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()
    wrapped = {name.replace("model.", "model.language_model.", 1): x for name, x in header.items()}
    wrapped["model.visual.blocks.0.norm1.weight"] = {"dtype": "BF16", "shape": [4], "data_offsets": [len(data), len(data) + 8]}
    text = json.dumps(wrapped).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data + VISION)
    path = os.path.join(model, "config.json")
    with open(path) as f:
        inner = json.load(f)
    with open(path, "w") as f:
        json.dump({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": inner, "image_token_id": 7,
                   "tie_word_embeddings": True}, f)


class Hybrid(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        dense, model = cls.task.path("dense"), cls.task.path("model")
        os.rename(model, dense)
        subprocess.run([ROLLCALL, "random-model", "--shape", "starter-hybrid", "--tokenizer", dense, "--out", model], check=True,
                       capture_output=True, timeout=LIMIT)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not os.path.exists(os.path.join(model, name)):
                shutil.copy(os.path.join(dense, name), model)
        wrap(model)

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        return run.weights(STEPS), run.ledger()

    def rows(self, run):
        done = subprocess.run([ROLLCALL, "export", "jsonl", run.dir], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["metrics"] for line in done.stdout.splitlines()]

    def test_one_device_and_two_and_a_killed_run_end_with_the_same_bytes(self):
        one = self.start("--max-steps", str(STEPS), **ONE)
        want = self.finish(one)
        first = self.start("--max-steps", str(STEPS), **TWO)
        first.wait_step(3)
        name = os.path.basename(first.dir)
        first.kill()
        again = Run(self.task, name, resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again), want)
        for row in self.rows(one) + self.rows(again):
            self.assertEqual(row["train/sampler_trainer_diff"], 0, row)
        path = os.path.join(again.dir, f"checkpoints/step-{STEPS:06d}")
        with open(os.path.join(path, "config.json")) as f:
            config = json.load(f)
        self.assertEqual((config["model_type"], config["image_token_id"], config["text_config"]["layer_types"]),
                         ("qwen3_5", 7, ["linear_attention", "linear_attention", "full_attention"]))
        with open(os.path.join(path, "model.safetensors"), "rb") as f:
            header, data = json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()
        self.assertEqual(header["model.language_model.layers.0.linear_attn.conv1d.weight"]["shape"], [256, 1, 4])
        self.assertEqual(header["model.language_model.layers.2.self_attn.q_proj.weight"]["shape"], [256, 128])
        self.assertEqual(data[slice(*header["model.visual.blocks.0.norm1.weight"]["data_offsets"])], VISION)

    def test_the_plan_is_made_with_the_states_of_all_samples(self):
        said = subprocess.run([ROLLCALL, "train", self.task.run_file("plan.yaml"), "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("are states of sequences", said.stdout)
        self.assertIn("s a step", said.stdout)

    def test_what_states_cannot_do_yet_is_refused_before_anything_starts(self):
        for extra, settings, words in [
                (["-tp", "2"], {}, ("linear attention", "tensor_parallel_size")),
                (["-pp", "2"], {}, ("linear attention", "pipeline_parallel_size")),
                ([], dict(lora_rank=4, lora_target_modules="q_proj"), ("'q_proj'", "gate_proj, up_proj, down_proj"))]:
            run = self.start(*extra, "--dry-run", **settings)
            run.process.wait(LIMIT)
            self.assertNotEqual(run.process.returncode, 0, extra)
            text = run.logs(whole=True)
            for word in words:
                self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
