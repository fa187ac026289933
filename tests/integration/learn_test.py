"""One seed of the starter task, shortened: from sampled answers and their rewards alone the model gets right what it got wrong.

The starter and the run are the same bits on every machine, so the figures are too. The whole table, five seeds and the control:
examples/learning.py.

tags: alone starter limit=900
"""
import json, os, subprocess, tempfile, unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))


class Learn(unittest.TestCase):
    def test_twenty_steps_reach_the_bar(self):
        self.assertTrue(os.path.exists(os.path.join(ROOT, "build/starter/config.json")), "run examples/make_starter.sh first")
        with tempfile.TemporaryDirectory() as runs:
            p = subprocess.run([ROLLCALL, "train", os.path.join(ROOT, "examples/arithmetic.yaml"), "--batch", "--format", "jsonl",
                                "--runs-dir", runs, "--max-steps", "20", "--seed", "1"], capture_output=True, text=True, timeout=800)
            self.assertEqual(p.returncode, 0, p.stderr[-3000:])
            lines = [json.loads(x) for x in p.stdout.splitlines()]
        steps = [x["metrics"] for x in lines if x["event"] == "step"]
        self.assertEqual(len(steps), 20)
        # fresh data is on-policy to the bit
        self.assertEqual(max(m["train/sampler_trainer_diff"] for m in steps if "train/sampler_trainer_diff" in m), 0)
        start, end = steps[0]["metrics/ans_acc"], steps[-1]["metrics/ans_acc"]
        self.assertTrue(0.10 <= start <= 0.40, start)
        self.assertGreater(end, start + 0.4)
        self.assertGreater(steps[-1]["metrics/response_length"], steps[0]["metrics/response_length"])
        last = lines[-1]
        self.assertEqual(last["event"], "finished")
        self.assertGreaterEqual(last["eval"]["sampled"]["mean"], 0.80)
        self.assertGreaterEqual(last["eval"]["greedy"]["mean"], 0.85)


unittest.main()
