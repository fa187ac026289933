"""A run with enable_profiling writes a timeline that trace viewers read, samples at full length, and trains on them."""
import glob, json, os, subprocess, unittest
from run_tools import ROLLCALL, Task


class Profile(unittest.TestCase):
    def test_a_profiled_run_leaves_a_timeline_of_full_length_samples(self):
        task = Task()
        self.addCleanup(task.close)
        sets = {"wild": {"path": task.path("train.jsonl"), "temperature": 100, "n": 8, "limit": 8}}    # some of these 64 answers end
        file = task.run_file(enable_profiling=True, max_steps=2, save_interval=0, save_at_end=False, eval_dataset=sets, eval_interval=2)
        p = subprocess.run([ROLLCALL, "train", file, "--batch", "--format", "jsonl", "--runs-dir", task.path("runs"), "--name", "p"],
                           capture_output=True, text=True, timeout=240)
        self.assertEqual(p.returncode, 0, p.stderr)
        steps = [e["metrics"] for e in map(json.loads, p.stdout.splitlines()) if e["event"] == "step"]
        self.assertEqual(len(steps), 2)
        for m in steps:
            self.assertEqual(m["metrics/response_length"], 12)
            self.assertEqual(m["metrics/truncated_ratio"], 0)    # or there would be no reward, and nothing to train on
            self.assertGreater(m["train/grad_norm"], 0)
        with open(task.path("runs/p/eval/wild_training_step_2.jsonl"), encoding="utf-8") as f:
            self.assertIn("stop", {json.loads(line)["finish_reason"] for line in f})    # evaluations end as ever
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
        done = subprocess.run([ROLLCALL, "profile", task.path("runs/p")], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(task.path("runs/p/logs/timeline.json"), encoding="utf-8") as f:
            merged = json.load(f)["traceEvents"]
        done = subprocess.run([ROLLCALL, "profile", task.path("runs/p"), "--out", "-"], capture_output=True, text=True, timeout=60, cwd=task.dir)
        self.assertEqual((json.loads(done.stdout)["traceEvents"], os.path.exists(task.path("-"))), (merged, False))
        self.assertRegex(done.stderr, r"^standard output: \d+ phases, \d+ operations\n$")
        rows = {e["args"]["name"]: e["pid"] for e in merged if e["ph"] == "M"}
        self.assertEqual(set(rows), {"controller", "scorer", "worker-cpu-0", "device cpu-0"})
        of = {name: [e for e in merged if e["ph"] == "X" and e["pid"] == row] for name, row in rows.items()}
        self.assertEqual(len(of["device cpu-0"]), len(events))
        self.assertLessEqual({"generating", "training"}, {e["name"] for e in of["worker-cpu-0"]})
        self.assertIn("scoring", {e["name"] for e in of["scorer"]} | {"scoring"})
        self.assertGreaterEqual(min(e["ts"] for e in merged if e["ph"] == "X"), 0)
        for name in ("controller", "scorer", "worker-cpu-0"):    # a process is in one phase at a time
            at = sorted((e["ts"], e["dur"]) for e in of[name])
            self.assertTrue(all(a[0] + a[1] <= b[0] + 1 for a, b in zip(at, at[1:])), at)
        # what the device did for training lies in the worker's training phases; the loop hears of a phase a little later
        training = [(e["ts"], e["ts"] + e["dur"]) for e in of["worker-cpu-0"] if e["name"] == "training"]
        for e in of["device cpu-0"]:
            if e["name"] == "adamw":
                self.assertTrue(any(a - 2e5 <= e["ts"] <= b + 2e5 for a, b in training), (e, training))
        with open(task.path("runs/p/logs/worker-cpu-0.prof")) as f:
            self.assertRegex(f.readline(), r"^\d+\.\d{6} worker_cpu:0 \d+:: Enter \w+\n$")
        missing = subprocess.run([ROLLCALL, "profile", task.dir], capture_output=True, text=True, timeout=60)
        self.assertEqual((missing.returncode, missing.stderr.count("\n")), (1, 1), missing.stderr)


unittest.main()
