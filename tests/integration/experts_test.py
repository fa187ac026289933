"""Runs that train a mixture of experts: the same bytes on one and two devices and whoever dies, what they save, and what is refused."""
import unittest
from kind_case import KindCase


class Experts(KindCase):
    SHAPE = "starter-moe"

    def test_one_device_and_two_and_a_killed_run_end_with_the_same_bytes(self):
        _, again = self.same_bytes()
        for row in self.rows(again):    # 8 experts, 2 of which a row chooses
            self.assertTrue(1 / 8 <= row["experts/busiest_share"] <= 1 / 2, row)
            self.assertTrue(0 <= row["experts/idle_share"] <= 6 / 8, row)
            self.assertTrue(1 / 3 <= row["experts/load_entropy"] <= 1, row)
        config, header, _ = self.saved(again)
        self.assertEqual((config["model_type"], config["num_experts"], config["num_experts_per_tok"], config["norm_topk_prob"]),
                         ("qwen3_moe", 8, 2, True))
        self.assertIn("model.layers.2.mlp.experts.7.down_proj.weight", header)
        self.assertIn("model.layers.0.mlp.gate.weight", header)

    def test_what_experts_cannot_do_yet_is_refused_before_anything_starts(self):
        self.refused("mixture of experts", "gate_proj", "q_proj, k_proj, v_proj, o_proj")


if __name__ == "__main__":
    unittest.main()
