"""A small mixture of experts, made here by supervised training, learns the starter's task by GRPO as the dense starter does.

tags: long alone limit=1800
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Experts(unittest.TestCase):
    def test_a_mixture_of_experts_learns_arithmetic_from_rewards(self):
        with tempfile.TemporaryDirectory() as work:
            model = os.path.join(work, "starter-moe")
            subprocess.run([os.path.join(ROOT, "examples/make_starter.sh")], check=True, timeout=1200, env={**os.environ, "SHAPE": "starter-moe", "OUT": model})
            done = subprocess.run([sys.executable, os.path.join(ROOT, "examples/learning.py"), "--seeds", "1", "--no-control", "--runs-dir", work, "--",
                                   "-m", model], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])    # 80 % sampled, 85 % greedy
        first, end = map(float, re.search(r"^\| GRPO \| 1 \| .* \| ([\d.]+) → ([\d.]+) % \|", done.stdout, re.M).groups())
        self.assertGreater(end, first + 20)


unittest.main()
