"""A run with enable_profiling writes a timeline that trace viewers read, samples at full length, and trains on them."""
import glob, json, os, subprocess, unittest
from run_tools import ROLLCALL, Task


class Profile(unittest.TestCase):
    def test_a_profiled_run_leaves_a_timeline_of_full_length_samples(self):
        task = Task()
        self.addCleanup(task.close)
        file = task.run_file(enable_profiling=True, max_steps=2, save_interval=0, save_at_end=False)
        p = subprocess.run([ROLLCALL, "train", file, "--batch", "--format", "jsonl", "--runs-dir", task.path("runs"), "--name", "p"],
                           capture_output=True, text=True, timeout=240)
        self.assertEqual(p.returncode, 0, p.stderr)
        steps = [e["metrics"] for e in map(json.loads, p.stdout.splitlines()) if e["event"] == "step"]
        self.assertEqual(len(steps), 2)
        for m in steps:
            self.assertEqual(m["metrics/response_length"], 12)
            self.assertEqual(m["metrics/truncated_ratio"], 0)    # or there would be no reward, and nothing to train on
            self.assertGreater(m["train/grad_norm"], 0)
        self.assertEqual(glob.glob(task.path("runs/p/checkpoints/step-*")), [])    # save_at_end is false
        with open(task.path("runs/p/logs/profile-cpu-0.json"), encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
        names = {e["name"] for e in events}
        self.assertLessEqual({"linear_fwd", "attn_paged", "attn_bwd", "sample_fwd", "adamw"}, names)
        for e in events:
            self.assertEqual(e["ph"], "X")
            self.assertGreaterEqual(e["dur"], 0)
        starts = [e["ts"] for e in events]
        self.assertEqual(starts, sorted(starts))


unittest.main()
