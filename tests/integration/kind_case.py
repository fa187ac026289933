"""What tests of a kind of models share: runs of a small one, on one device, on two and killed, and what it is refused for."""
import json
import os
import shutil
import subprocess
from run_tools import LIMIT, ROLLCALL, Run, RunCase

STEPS = 6
ONE = dict(save_interval=2)
TWO = dict(ONE, num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4,
           train_minibatch_size=4)


class KindCase(RunCase):
    """Tests of a task whose model is a random one of SHAPE."""
    SHAPE = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        dense, model = cls.task.path("dense"), cls.task.path("model")
        os.rename(model, dense)
        subprocess.run([ROLLCALL, "random-model", "--shape", cls.SHAPE, "--tokenizer", dense, "--out", model], check=True,
                       capture_output=True, timeout=LIMIT)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not os.path.exists(os.path.join(model, name)):
                shutil.copy(os.path.join(dense, name), model)

    def rows(self, run):
        """The metrics of each step."""
        return [row["metrics"] for row in self.tool("export", "jsonl", run.dir)]

    def same_bytes(self):
        """A run on one device, and one on two that was killed and resumed: both end with the same bytes."""
        one = self.start("--max-steps", str(STEPS), **ONE)
        want = self.finish(one, STEPS)
        first = self.start("--max-steps", str(STEPS), **TWO)
        first.wait_step(3)
        first.kill()
        again = Run(self.task, os.path.basename(first.dir), resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again, STEPS), want)
        return one, again

    def saved(self, run):
        """Of the last checkpoint the config.json, the header of the weights, and their bytes."""
        path = os.path.join(run.dir, f"checkpoints/step-{STEPS:06d}")
        with open(os.path.join(path, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(path, "model.safetensors"), "rb") as f:
            return config, json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()

    def refused(self, kind, target, others):
        """Layouts that cut a model, and an adapter on target, are refused before anything starts; others can have one."""
        for extra, settings, words in [
                (["-tp", "2"], {}, (kind, "tensor_parallel_size")),
                (["-pp", "2"], {}, (kind, "pipeline_parallel_size")),
                ([], dict(lora_rank=4, lora_target_modules=target), (f"'{target}'", others))]:
            run = self.start(*extra, "--dry-run", **settings)
            run.process.wait(LIMIT)
            self.assertNotEqual(run.process.returncode, 0, extra)
            text = run.logs(whole=True)
            for word in words:
                self.assertIn(word, text)
