"""What a run has sampled can be printed, and its checkpoints give every kept log-prob again, to the bit."""
import html
import json
import math
import os
import re
import sqlite3
import subprocess
import unittest
import histograms
import tiny_model
from run_tools import ROLLCALL, Run, Task

STEPS = 4


class Rollouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task(max_pos=1024)    # for answers long enough to be stopped in the middle
        tiny_model.pad_rename(cls.task.path("model"), "</think>")
        cls.run_ = Run(cls.task, "r", cls.task.run_file(save_interval=1, temperature=0.9, rollout_log_interval=2, rollout_entropy=True, peak_tflops=1, peak_gb_per_s=10), ["--max-steps", str(STEPS)])
        code, last = cls.run_.wait()
        assert (code, last.get("event")) == (0, "finished"), cls.run_.logs()

    @classmethod
    def tearDownClass(cls):
        cls.run_.kill()
        cls.task.close()

    def tool(self, *args, lines=(), want=0):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        p = subprocess.run([ROLLCALL, *args], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240)
        self.assertEqual(p.returncode, want, p.stderr.decode())
        return [json.loads(line) for line in p.stdout.splitlines()] if want == 0 else p.stderr.decode()

    def test_the_weights_of_its_version_give_each_log_prob_again(self):
        rows = self.tool("rollouts", self.run_.dir, "--ids")
        self.assertEqual(len(rows), STEPS * 8 * 4)    # prompts a step, samples a prompt
        versions = sorted({r["version"] for r in rows})
        self.assertEqual(versions, list(range(STEPS)))
        checked = 0
        for version in versions:
            model = self.task.path("model") if version == 0 else os.path.join(self.run_.dir, "checkpoints",
                                                                              "step-%06d" % version)
            if not os.path.isdir(model):    # saving step 2 while step 1 is being written waits for the next one
                continue
            checked += 1
            mine = [r for r in rows if r["version"] == version]
            ask = [{"ids": r["prompt_ids"] + r["ids"], "prompt_len": len(r["prompt_ids"]), "temperature": r["temperature"]}
                   for r in mine]
            got = [r["logprobs"] for r in self.tool("logprobs", "--model", model, lines=ask)]
            self.assertEqual(got, [r["logprobs"] for r in mine], version)
        self.assertGreaterEqual(checked, 2)    # the model it started from, and step 1

    def test_each_token_has_the_entropy_that_the_trainer_finds_too(self):
        rows = self.tool("rollouts", self.run_.dir, "--ids")
        out = self.task.path("entropy.jsonl")
        subprocess.run([ROLLCALL, "export", "jsonl", self.run_.dir, "--series", "train/entropy", "--out", out], check=True, capture_output=True)
        with open(out) as f:
            told = {line["step"]: line["metrics"]["train/entropy"] for line in map(json.loads, f) if "train/entropy" in line["metrics"]}
        self.assertGreaterEqual(len(told), 2)    # a step whose rewards were all equal trains on nothing
        for r in rows:
            self.assertEqual(len(r["entropies"]), len(r["ids"]))
            self.assertTrue(all(0 <= e <= math.log(300) for e in r["entropies"]), r)    # the model's vocabulary is smaller
        for step, entropy in told.items():    # on policy: the batch is the rollout step's; a mean over tokens
            rewards = {item: {r["reward"] for r in rows if r["item"] == item} for item in {r["item"] for r in rows}}
            mine = [e for r in rows if r["version"] == step - 1 and len(rewards[r["item"]]) > 1 for e in r["entropies"]]
            self.assertAlmostEqual(entropy, sum(mine) / len(mine), delta=1e-5 * entropy, msg=step)    # fp32 both ways

    def test_a_page_of_the_run_shows_its_newest_samples(self):
        page = subprocess.run([ROLLCALL, "export", "html", self.run_.dir], check=True, capture_output=True, text=True).stdout
        groups = re.findall(r"<summary>item (\d+), sampled with the weights of step (\d+)", page)
        self.assertEqual(groups, [(str(STEPS * 8 - k), str(STEPS - 1)) for k in (4, 3, 2, 1)])
        rows = [r for r in self.tool("rollouts", self.run_.dir) if r["item"] == STEPS * 8 - 1]
        for reward in (max(r["reward"] for r in rows), min(r["reward"] for r in rows)):
            self.assertRegex(page, rf"<h4>(best|worst): reward {reward:.4g}, \d+ tokens")
        shown = [html.unescape(text) for text in re.findall(r"<pre>\n(.*?)</pre>", page, re.S)]
        best = max(rows, key=lambda r: r["reward"])["text"]
        self.assertIn(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", best), shown)    # what HTML cannot hold

    def test_each_sample_has_its_text_reward_and_end(self):
        rows = self.tool("rollouts", self.run_.dir)
        for r in rows:
            self.assertIn(r["finish_reason"], ("stop", "length"))
            self.assertTrue(r["scored"])
            self.assertTrue(0 <= r["reward"] <= 1)
            self.assertIn("<|im_start|>user\n", r["prompt"])
        one = self.tool("rollouts", self.run_.dir, "--item", str(rows[0]["item"]))
        self.assertEqual(one, [r for r in rows if r["item"] == rows[0]["item"]])
        self.assertEqual(self.tool("rollouts", self.run_.dir, "--step", "2"), [r for r in rows if r["rollout_step"] == 2])

    def test_each_token_has_its_part_of_the_text_and_each_group_its_right_answer(self):
        with open(self.task.path("train.jsonl")) as f:
            answers = {str(json.loads(line)["gt_answer"]) for line in f}
        checked = 0
        for r in self.tool("rollouts", self.run_.dir, "--ids"):
            text, at = r["text"].encode(), 0
            self.assertEqual(len(r["text_bytes"]), len(r["ids"]))
            self.assertIn(r["gold"], answers)
            if 0 in r["ids"]:    # in this vocabulary the byte 0, where the kept text ends
                continue
            for n in r["text_bytes"]:
                text[at:at + n].decode()    # never half a character
                at += n
            self.assertEqual(at, len(text), r)
            checked += 1
        self.assertGreater(checked, 0)

    def test_a_tag_that_is_a_special_token_is_in_the_text_and_no_other_is(self):
        rows = [r for r in self.tool("rollouts", self.run_.dir, "--ids") if 0 not in r["ids"]]
        for r in rows:
            self.assertEqual(r["text"].count("</think>"), r["ids"].count(259), r)
            self.assertNotIn("<|", r["text"])
        self.assertGreater(sum(r["ids"].count(259) for r in rows), 0)
        self.assertIn("stop", [r["finish_reason"] for r in rows])    # after an end token

    def test_the_log_has_the_first_sample_of_each_prompt(self):
        log = self.tool("rollouts", self.run_.dir, "--log", "--every", "2")
        self.assertEqual([line["train_step"] for line in log], [0, 2])
        self.assertEqual([len(line["rollout"]) for line in log], [8, 8])
        self.assertTrue(all(text.startswith("<|im_start|>user\n") for line in log for text in line["rollout"]))
        self.assertEqual([line["train_step"] for line in self.tool("rollouts", self.run_.dir, "--log")], [0])

    def test_the_run_writes_the_same_log_while_it_goes(self):
        printed = self.tool("rollouts", self.run_.dir, "--log", "--every", "2")
        with open(os.path.join(self.run_.dir, "rollouts", "log.jsonl")) as f:
            self.assertEqual([json.loads(line) for line in f], printed)

    def test_a_killed_run_goes_on_after_the_last_whole_line_and_rollout_save_dir_takes_it(self):
        away = self.task.path("away")
        file = self.task.run_file(rollout_log_interval=3, rollout_save_dir=away, save_interval=2)
        run = Run(self.task, "killed", file, ["--max-steps", "9"])
        try:
            run.wait_step(3)
        finally:
            run.kill()
        with open(os.path.join(away, "log.jsonl"), "a") as f:    # as if it had died while it wrote
            f.write('{"train_step":6,"rol')
        again = Run(self.task, "killed", resume=True)
        try:
            code, last = again.wait()
            self.assertEqual((code, last.get("event")), (0, "finished"), again.logs())
        finally:
            again.kill()
        with open(os.path.join(away, "log.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual([line["train_step"] for line in lines], [0, 3, 6])
        self.assertEqual(lines, self.tool("rollouts", os.path.join(away, "groups.zst"), "--log", "--every", "3"))
        self.assertEqual(lines, self.tool("rollouts", run.dir, "--log", "--every", "3"))    # found by the run's settings
        self.assertFalse(os.path.exists(os.path.join(run.dir, "rollouts", "log.jsonl")))

    def test_solved_prompts_come_once_and_a_kill_changes_nothing(self):
        with open(self.task.path("thirds.py"), "w") as f:
            f.write("import json, sys\nfor line in sys.stdin:\n    q = json.loads(line)\n    right = int(q['row']['gt_answer']) % 3 == 0\n"
                    "    print(json.dumps({'id': q['id'], 'reward': len(q['response']) % 5, 'format_acc': 1, 'ans_acc': right}), flush=True)\n")
        file = self.task.run_file(no_resampling_pass_rate=1, n_behind=1, save_interval=4, reward_type=f"program:python3 {self.task.path('thirds.py')}")
        runs = []
        for name in ("calm", "shaken"):
            run = Run(self.task, name, file, ["--max-steps", "20"])
            self.addCleanup(run.kill)
            if name == "shaken":
                run.wait_step(11)    # in the second pass over 64 prompts
                run.kill()
                run = Run(self.task, name, resume=True)
                self.addCleanup(run.kill)
            code, last = run.wait()
            self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
            items = {}
            for r in self.tool("rollouts", run.dir):
                items.setdefault(r["item"], (r["row"], r["ans_acc"]))
            counts = [r["metrics"].get("rollout/solved_prompts") for r in self.tool("export", "jsonl", run.dir)]
            runs.append((items, [n for n in counts if n is not None]))
        self.assertEqual(*runs)
        items, counts = runs[0]
        often = {}
        for row, right in items.values():
            often.setdefault((row, right), []).append(row)
        solved = {row: len(n) for (row, right), n in often.items() if right}
        self.assertEqual(set(solved.values()), {1})
        self.assertEqual(len(solved), counts[-1])
        self.assertGreater(max(len(n) for (_, right), n in often.items() if not right), 2)    # the others fill their places

    def test_of_more_prompts_than_needed_the_shortest_count_whoever_samples_and_whoever_dies(self):
        # Samples of this model have some 200 tokens. Where the eighth longest is cut at the limit, none can be longer, and nothing is stopped.
        base = dict(over_sample_rate=0.5, max_new_tokens=600, num_generations=2, save_interval=4, n_behind=1)
        alone = dict(inference_microbatch_size=4)
        two = dict(num_inferencer=2, placement="apart", inference_batch_size=4, inference_microbatch_size=4)
        ends, stopped = [], 0
        for name, settings in (("one", alone), ("killed", alone), ("two", two)):
            run = Run(self.task, "over-" + name, self.task.run_file(**(base | settings)), ["--max-steps", "8"])
            self.addCleanup(run.kill)
            if name == "killed":
                run.wait_step(5)
                run.kill()
                run = Run(self.task, "over-killed", resume=True)
                self.addCleanup(run.kill)
            code, last = run.wait()
            self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
            steps = [r["metrics"] for r in self.tool("export", "jsonl", run.dir)]
            ends.append((run.weights(8), run.ledger(), [(m["metrics/reward"], m["metrics/response_length"]) for m in steps]))
            stopped += run.journal_number("select count(*) from item where fate = 5 and file_offset < 0")
            lengths = {}
            for r in self.tool("rollouts", run.dir, "--ids"):
                lengths[r["item"]] = max(lengths.get(r["item"], 0), len(r["ids"]))
            trained = {item for item, *_ in run.ledger()}
            for first in range(0, 8 * 12, 12):    # of 12 prompts a step 8 count
                back = sorted((n, item) for item, n in lengths.items() if first <= item < first + 12)
                self.assertEqual({item for _, item in back[:8]}, trained & set(range(first, first + 12)))
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], ends[2])
        self.assertGreater(stopped, 0)    # in the middle of their samples

    def test_shares_of_solved_groups_and_of_the_devices_peaks_are_those_of_the_samples(self):
        groups = {}
        for r in self.tool("rollouts", self.run_.dir, "--ids"):
            groups.setdefault(r["rollout_step"], {}).setdefault(r["item"], []).append((r["ans_acc"], len(r["prompt_ids"]), len(r["ids"])))
        with open(self.task.path("model/config.json")) as f:
            c = json.load(f)
        d, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        wide = d // heads
        product = c["num_hidden_layers"] * d * (2 * d + 2 * kv * wide + 3 * c["intermediate_size"]) + c["vocab_size"] * d
        trained = 0
        for r in self.tool("export", "jsonl", self.run_.dir):
            m, step = r["metrics"], groups[r["step"] - 1]
            rates = [sum(right for right, *_ in g) / len(g) for g in step.values()]
            self.assertEqual((m["metrics/groups"], m["metrics/filtered_groups"]), (8, 0))
            self.assertAlmostEqual(m["metrics/solve_rate"], sum(rates) / 8)
            self.assertEqual((m["metrics/all_right_ratio"], m["metrics/none_right_ratio"]), (rates.count(1) / 8, rates.count(0) / 8))
            samples = [s for g in step.values() for s in g]
            for side, right in (("right", 1), ("wrong", 0)):
                of = [n for good, _, n in samples if good == right]
                self.assertAlmostEqual(m.get(f"metrics/response_length_{side}", 0), sum(of) / len(of) if of else 0)
            self.assertEqual(m["metrics/response_length_min"], min(n for *_, n in samples))
            lengths = [p + n for _, p, n in samples]
            seen = sum(n * n for n in lengths) / sum(lengths) / 2
            flops = 3 * (2 * product + 4 * c["num_hidden_layers"] * heads * wide * seen)
            run = m["perf/train_tok_per_s"] * (1 - m["perf/train_shared_share"])    # what is computed once counts once
            self.assertAlmostEqual(m["perf/train_mfu"] * 1e12, run * flops, delta=1e-9 * flops * run)
            trained += m["perf/train_mfu"] > 0    # a step whose rewards are all the same runs nothing
            self.assertTrue(0 < m["perf/rollout_mfu"] < 1 and 0 < m["perf/rollout_mbu"] < 10)
        self.assertGreater(trained, 0)

    def test_the_journal_has_the_histograms_of_each_step(self):
        lengths, rewards = {}, {}
        for r in self.tool("rollouts", self.run_.dir, "--ids"):
            lengths.setdefault(r["rollout_step"], []).append(len(r["ids"]))
            rewards.setdefault(r["rollout_step"], []).append(r["reward"])
        with sqlite3.connect(f"file:{os.path.join(self.run_.dir, 'journal.db')}?mode=ro", uri=True) as db:
            rows = db.execute("select step, data from histogram join step on histogram.seq = step.seq order by step").fetchall()
        self.assertEqual([step for step, _ in rows], list(range(1, STEPS + 1)))
        for step, data in rows:
            have = histograms.unpack(data)
            for name, values in (("metrics/response_length_hist", lengths), ("metrics/reward_hist", rewards)):
                v = values[step - 1]
                self.assertEqual(have[name][:3], (len(v), min(v), max(v)))
                self.assertEqual(have[name][3], histograms.spread(v)[0])
            self.assertEqual(have["metrics/solve_rate_hist"][0], 8)
            right, wrong = (have.get(f"metrics/response_length_{side}_hist", (0,))[0] for side in ("right", "wrong"))
            self.assertEqual(right + wrong, 32)
            self.assertEqual(have["train/advantages_hist"][0], 32)

    def test_a_missing_or_foreign_file_is_one_sentence(self):
        self.assertIn("none", self.tool("rollouts", self.task.path("none"), want=1))
        self.assertIn("run.yaml", self.tool("rollouts", os.path.join(self.run_.dir, "run.yaml"), want=1))
        self.assertIn("needed", self.tool("rollouts", want=2))


if __name__ == "__main__":
    unittest.main()
