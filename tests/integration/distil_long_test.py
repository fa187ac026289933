"""A teacher that has learnt the starter's task teaches it to the starter in fewer samples than rewards do.

tags: long alone starter limit=900
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Distil(unittest.TestCase):
    def test_a_teacher_needs_fewer_samples_than_rewards(self):
        self.assertTrue(os.path.exists(os.path.join(ROOT, "build/starter/config.json")), "run examples/make_starter.sh first")
        with tempfile.TemporaryDirectory() as runs:
            done = subprocess.run([sys.executable, os.path.join(ROOT, "examples/distil.py"), "--seeds", "1", "--steps", "20", "--runs-dir", runs],
                                  capture_output=True, text=True, timeout=800)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
        shares = {kind: [float(x) for x in row.split("|")] for kind, row in re.findall(r"^\| (rewards|a teacher|both) \| (.*) \|$", done.stdout, re.M)}
        self.assertEqual(shares["rewards"][0], shares["a teacher"][0])
        # the bar is on the figures after 40 to 160 samples, of which the same bits give the same on every machine
        self.assertGreater(sum(shares["a teacher"][1:]), sum(shares["rewards"][1:]) + 4 * 3)


unittest.main()
