"""Runs that train a model of gated delta nets and attention: sampler and trainer agree to the bit, one device, two and a killed run end with
the same bytes in the layout that was loaded, and what it cannot do is refused."""
import json
import os
import subprocess
import unittest
from kind_case import KindCase
from run_tools import LIMIT, ROLLCALL

VISION = b"\1\2\3\4\5\6\7\x08"


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


class Hybrid(KindCase):
    SHAPE = "starter-hybrid"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        wrap(cls.task.path("model"))

    def test_one_device_and_two_and_a_killed_run_end_with_the_same_bytes(self):
        one, again = self.same_bytes()
        for row in self.rows(one) + self.rows(again):
            self.assertEqual(row["train/sampler_trainer_diff"], 0, row)
        config, header, data = self.saved(again)
        self.assertEqual((config["model_type"], config["image_token_id"], config["text_config"]["layer_types"]),
                         ("qwen3_5", 7, ["linear_attention", "linear_attention", "full_attention"]))
        self.assertEqual(header["model.language_model.layers.0.linear_attn.conv1d.weight"]["shape"], [256, 1, 4])
        self.assertEqual(header["model.language_model.layers.2.self_attn.q_proj.weight"]["shape"], [256, 128])
        self.assertEqual(data[slice(*header["model.visual.blocks.0.norm1.weight"]["data_offsets"])], VISION)

    def test_the_plan_is_made_with_the_states_of_all_samples(self):
        said = subprocess.run([ROLLCALL, "train", self.task.run_file("plan.yaml"), "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("are states of sequences", said.stdout)
        self.assertIn("s a step", said.stdout)

    def test_what_states_cannot_do_yet_is_refused_before_anything_starts(self):
        self.refused("linear attention", "q_proj", "gate_proj, up_proj, down_proj")


if __name__ == "__main__":
    unittest.main()
