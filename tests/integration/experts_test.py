"""Runs that train a mixture of experts: the same bytes on one and two devices and whoever dies, what they save, and what is refused."""
import json
import os
import shutil
import subprocess
import unittest
from run_tools import LIMIT, ROLLCALL, Run, RunCase

STEPS = 6
ONE = dict(save_interval=2)
TWO = dict(ONE, num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4,
           train_minibatch_size=4)


class Experts(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        dense, model = cls.task.path("dense"), cls.task.path("model")
        os.rename(model, dense)
        subprocess.run([ROLLCALL, "random-model", "--shape", "starter-moe", "--tokenizer", dense, "--out", model], check=True,
                       capture_output=True, timeout=LIMIT)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not os.path.exists(os.path.join(model, name)):
                shutil.copy(os.path.join(dense, name), model)

    def finish(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        return run.weights(STEPS), run.ledger()

    def export(self, run):
        done = subprocess.run([ROLLCALL, "export", "jsonl", run.dir], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_one_device_and_two_and_a_killed_run_end_with_the_same_bytes(self):
        want = self.finish(self.start("--max-steps", str(STEPS), **ONE))
        first = self.start("--max-steps", str(STEPS), **TWO)
        first.wait_step(3)
        name = os.path.basename(first.dir)
        first.kill()
        again = Run(self.task, name, resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again), want)
        for row in (json.loads(line)["metrics"] for line in self.export(again)):    # 8 experts, 2 of which a row chooses
            self.assertTrue(1 / 8 <= row["experts/busiest_share"] <= 1 / 2, row)
            self.assertTrue(0 <= row["experts/idle_share"] <= 6 / 8, row)
            self.assertTrue(1 / 3 <= row["experts/load_entropy"] <= 1, row)
        path = os.path.join(again.dir, f"checkpoints/step-{STEPS:06d}")
        with open(os.path.join(path, "config.json")) as f:
            config = json.load(f)
        self.assertEqual((config["model_type"], config["num_experts"], config["num_experts_per_tok"], config["norm_topk_prob"]),
                         ("qwen3_moe", 8, 2, True))
        with open(os.path.join(path, "model.safetensors"), "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        self.assertIn("model.layers.2.mlp.experts.7.down_proj.weight", header)
        self.assertIn("model.layers.0.mlp.gate.weight", header)

    def test_what_experts_cannot_do_yet_is_refused_before_anything_starts(self):
        for extra, settings, words in [
                (["-tp", "2"], {}, ("mixture of experts", "tensor_parallel_size")),
                (["-pp", "2"], {}, ("mixture of experts", "pipeline_parallel_size")),
                ([], dict(lora_rank=4, lora_target_modules="gate_proj"), ("'gate_proj'", "q_proj, k_proj, v_proj, o_proj"))]:
            run = self.start(*extra, "--dry-run", **settings)
            run.process.wait(LIMIT)
            self.assertNotEqual(run.process.returncode, 0, extra)
            text = run.logs(whole=True)
            for word in words:
                self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
