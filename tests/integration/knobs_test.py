"""tags: limit=600

What a setting says, it does. Every knob is changed in a run that goes, and its effect is looked for in what the workers did: in the
journal's steps and items, in rollouts, evaluations, checkpoints and gauges, never in the status that repeats the value. Every other
setting is read by some code that acts on it, or says that it has no effect."""
import functools
import hashlib
import json
import math
import os
import re
import sqlite3
import struct
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, Holds, Run, RunCase, free_port

PROVED = set()    # knobs with a test below that sees their effect


def proves(*names):
    """The test changes these knobs, and no others, and sees what each of them does."""
    PROVED.update(names)

    def wrap(test):
        @functools.wraps(test)
        def run(self):
            self.changed = set()
            test(self)
            self.assertEqual(self.changed, set(names), "the test does not change what it says it proves")
        return run
    return wrap


def settings():
    """{name: when it changes} as 'rollcall settings' prints them."""
    table = subprocess.run([ROLLCALL, "settings"], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)] for line in table.splitlines() if line.startswith("| `")]
    return {r[1].split("`")[1]: r[5] for r in rows}


class Table(unittest.TestCase):
    def test_every_live_knob_has_a_test_that_sees_its_effect(self):
        live = {name for name, when in settings().items() if when != "start"}
        self.assertEqual(live - PROVED, set(), "live knobs that no test below proves: add one with @proves")
        self.assertEqual(PROVED - live, set(), "no live knobs any more")

    def test_every_setting_is_read_or_says_that_it_has_no_effect(self):
        refused = {"sequence_parallel_size", "enable_sequence_parallelism"}    # but for 1: run_config_test
        with open(os.path.join(ROOT, "protocol/settings/knobs.c")) as f:
            rows = re.findall(r'^    \{ "(\w+)",.*AT\((\w+)\).*$', f.read(), re.M)
            f.seek(0)
            lines = {m.group(1): m.group(0) for m in re.finditer(r'^    \{ "(\w+)",.*$', f.read(), re.M)}
        self.assertEqual({name for name, _ in rows}, set(settings()))
        read = ""
        for part in ("protocol", "workers", "console"):
            for folder, _, files in os.walk(os.path.join(ROOT, part)):
                for file in files:
                    # the table, its rules and its defaults act on nothing by themselves
                    if file.endswith(".c") and file not in ("knobs.c", "knob_idle.c", "run_config.c"):
                        with open(os.path.join(folder, file)) as f:
                            read += f.read()
        # functions of run_config.c that turn settings into what others act on
        with open(os.path.join(ROOT, "protocol/settings/run_config.c")) as f:
            text = f.read()
        for function in ("run_plan_make", "run_config_eval_sets", "run_config_n_device", "run_config_part", "run_config_micro_tok",
                         "run_config_temperature", "run_config_length", "run_config_zero", "run_config_environments", "run_config_serve_samples",
                         "bridge_default"):
            read += re.search(rf"^(?:static )?\w+ {function}\(.*?^}}", text, re.M | re.S).group(0)
        fields = set(re.findall(r"\b(?:(?:config|c|at|now|next)(?:->|\.))+(\w+)", read))    # the usual names of variables of struct run_config
        for file in ("wandb_who.c", "export_kinds.c"):    # tables whose rows name the setting that they read
            with open(os.path.join(ROOT, "protocol/settings", file)) as f:
                named = set(re.findall(r'^ +(?:\[\w+\] = )?\{ "(\w+)"', f.read(), re.M))
            fields |= {field for name, field in rows if name in named}
        for name, field in rows:
            if "NO_EFFECT(" in lines[name]:
                with self.subTest(name, no_effect=True):
                    read_by = set(re.findall(rf"^.*(?:->|\.){field}\b.*$", read, re.M))
                    self.assertTrue(all("t->config.train_" in line for line in read_by), read_by)    # resume keeps it out of the way
            elif name not in refused:
                with self.subTest(name):
                    self.assertTrue(field in fields, f"'{name}' is read by nothing: make it act, or give its row NO_EFFECT with what to use")


class Effects(RunCase):
    def start(self, *extra, env=None, **given):
        base = dict(learning_rate=0, save_interval=0, eval_at_end=False)    # weights that stay sample the same at any time
        run = super().start(*extra, env=env, **{**base, **given})
        run.wait_step(1)
        return run

    def change(self, run, **values):
        """Set them; {name: number of the first step or rollout step that has it, as the answer says; None: at once}."""
        told = self.ok(run, "set", *(f"{k}={v}" for k, v in values.items()))
        self.changed |= set(values)
        first = {}
        for part in told.strip().split("; "):
            m = re.match(r"(\w+): .* from (?:now|(?:optimizer|rollout) step (\d+)) on$", part)
            self.assertTrue(m, told)
            first[m.group(1)] = int(m.group(2)) if m.group(2) else None
        return first

    def query(self, run, text, *args):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=30) as db:
            return db.execute(text, args).fetchall()

    def metrics(self, run, step):
        """The journal's record of an optimizer step, once it is there."""
        run.wait_step(step)
        names = dict(self.query(run, "select id, name from series"))
        blob, = self.query(run, "select metrics from step where superseded = 0 and step = ?", step)[0]
        return {names[i]: v for i, v in struct.iter_unpack("<id", blob)}

    def series(self, run, name, first, n):
        return [self.metrics(run, s).get(name, math.nan) for s in range(first, first + n)]

    def until(self, run, what, get):
        """What get returns, once that is not empty."""
        end = time.monotonic() + LIMIT
        while not (found := get()):
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, f"{what}\n" + run.logs())
            time.sleep(0.02)
        return found

    def groups(self, run, rollout_step):
        """{item: [sample]} of a rollout step, as the journal counts them from 0, once all of it is trained on."""
        self.until(run, f"rollout step {rollout_step} is trained on", lambda: self.query(
            run, "select 1 from item where rollout_step = ? and fate = 4", rollout_step + 1))
        done = subprocess.run([ROLLCALL, "rollouts", run.dir, "--step", str(rollout_step), "--ids"], capture_output=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = {}
        for line in done.stdout.splitlines():
            sample = json.loads(line)
            out.setdefault(sample["item"], []).append(sample)
        self.assertTrue(out)
        return out

    def checkpoint(self, run):
        """The step and the bytes of the weights as they are now."""
        step = int(re.search(r"step (\d+)", self.ok(run, "checkpoint")).group(1))
        with open(os.path.join(run.dir, f"checkpoints/step-{step:06d}/model.safetensors"), "rb") as f:
            return step, f.read()

    def checkpoints(self, run):
        folder = os.path.join(run.dir, "checkpoints")
        return sorted(int(d[5:]) for d in os.listdir(folder) if re.fullmatch(r"step-\d+", d))

    # ---- sampling

    @proves("temperature", "top_k", "top_p", "min_p")
    def test_sampling_knobs_decide_what_is_drawn(self):
        def alike(group):
            return len({tuple(s["ids"]) for s in group}) == 1

        run = self.start()
        for name, value, off in (("temperature", "0.0000001", "1"), ("top_k", "1", "0"), ("top_p", "0.000001", "1"), ("min_p", "1", "0")):
            with self.subTest(name):
                first = self.change(run, **{name: value})[name] - 1
                self.assertFalse(all(alike(g) for g in self.groups(run, first - 1).values()))
                self.assertTrue(all(alike(g) for g in self.groups(run, first).values()))    # the likeliest token each time: no gap between two is so small
                back = self.change(run, **{name: off})[name] - 1
                self.assertFalse(all(alike(g) for g in self.groups(run, back).values()))

    @proves("max_new_tokens", "num_generations", "inference_batch_size", "train_batch_size")
    def test_sizes_are_those_of_the_groups_and_batches(self):
        run = self.start()

        def longest(rollout_step):
            return max(s["n_tok"] for g in self.groups(run, rollout_step).values() for s in g)

        first = self.change(run, max_new_tokens=5)["max_new_tokens"] - 1
        self.assertEqual((longest(first - 1), longest(first)), (12, 5))
        first = self.change(run, num_generations=6)["num_generations"] - 1
        self.assertEqual([{len(g) for g in self.groups(run, s).values()} for s in (first - 1, first)], [{4}, {6}])
        first = self.change(run, inference_batch_size=16)["inference_batch_size"] - 1
        self.assertEqual([len(self.groups(run, s)) for s in (first - 1, first)], [8, 16])
        first = self.change(run, train_batch_size=16)["train_batch_size"]
        run.wait_step(first)
        self.assertEqual([self.query(run, "select count(*) from item where step = ? and fate = 4", s)[0][0] for s in (first - 1, first)],
                         [8, 16])

    @proves("min_new_tokens")
    def test_no_sample_ends_before_the_fewest_tokens(self):
        run = self.start()
        first = self.change(run, min_new_tokens=11)["min_new_tokens"] - 1

        def lengths(rollout_step):
            return {s["n_tok"] for g in self.groups(run, rollout_step).values() for s in g}

        self.assertTrue(any(min(lengths(s)) < 11 for s in range(first)), "none ended early before")
        for rollout_step in range(first, first + 4):
            self.assertLessEqual(lengths(rollout_step), {12})    # an end may be the 12th token at the earliest, which is the last one anyway
        refused = run.ctl("set", "min_new_tokens=13")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("longest completion", refused.stdout + refused.stderr)

    @proves("curriculum_pass_rate", "curriculum_easier_rate", "curriculum_groups")
    def test_the_level_moves_by_its_shares_and_after_its_groups(self):
        play = self.task.path("half.py")
        with open(play, "w") as f:    # every second sample is right, whatever the level
            f.write("import json, sys\nfor line in sys.stdin:\n    q = json.loads(line)\n"
                    "    right = int(q.get('episode', '0.0').split('.')[1]) % 2\n"
                    "    a = {'observation': '1+1='} if q['op'] == 'reset' else {'reward': right, 'ans_acc': right, 'done': True}\n"
                    "    print(json.dumps({'id': q['id'], **a}), flush=True)\n")
        run = self.start(environment=f"program:exec python3 {play}", reward_type="environment", max_turns=1, max_turn_tokens=4,
                         curriculum_levels=100, curriculum_pass_rate=0.9, curriculum_groups=8)

        def level(step):
            return self.metrics(run, step)["rollout/level"]

        first = self.change(run, curriculum_pass_rate=0.5)["curriculum_pass_rate"]    # its cut leads to the next one's level
        self.assertEqual([level(first + k) for k in range(-1, 4)], [0, 0, 1, 2, 3])    # 8 groups a step
        first = self.change(run, curriculum_groups=16)["curriculum_groups"]
        levels = [level(first + k) for k in range(1, 9)]
        self.assertEqual({b - a for a, b in zip(levels, levels[2:])}, {1})
        first = self.change(run, curriculum_pass_rate=0.9, curriculum_easier_rate=0.5)["curriculum_easier_rate"]
        levels = [level(first + k) for k in range(3, 7)]
        self.assertEqual({b - a for a, b in zip(levels, levels[2:])}, {-1})

    @proves("max_new_tokens")
    def test_the_scorers_length_rules_go_by_the_limit_of_the_samples(self):
        # DAPO eq. 13: what is as long as the limit loses 10; at 6 tokens of the first limit's 12 nothing would be lost
        run = self.start(soft_over_length_punishment=True, reward_type="math", ignore_eos=True)
        first = self.change(run, max_new_tokens=6)["max_new_tokens"] - 1
        for rollout_step in (first - 1, first):
            samples = [s for g in self.groups(run, rollout_step).values() for s in g if s["scored"]]
            self.assertGreater(len(samples), 0)
            self.assertLessEqual({s["reward"] for s in samples}, {-10.0, 0.0})    # wrong or right
            self.assertIn(-10.0, {s["reward"] for s in samples})

    @proves("inference_microbatch_size")
    def test_a_producer_holds_no_more_prompts_than_it_may(self):
        run = self.start(inference_batch_size=32, inference_microbatch_size=32, train_batch_size=32, max_new_tokens=60, heartbeat_s=0.02,
                         ignore_eos=True)

        def held():
            worker, = [p for p in self.status(run)["processes"] if p["kind"] == "worker"]
            return worker["gauges"]["items"], worker["gauges"]

        self.until(run, "the worker holds many", lambda: held()[0] > 8)
        gauges = self.until(run, "its samples hold pages", lambda: (lambda g: g if g.get("pages_used") and g["running"] else None)(held()[1]))
        self.assertLessEqual(gauges["pages_used"], gauges["pages"])
        self.assertEqual(gauges["put_back"], 0)    # there are pages for all
        first = self.change(run, inference_microbatch_size=2)["inference_microbatch_size"] - 1
        self.until(run, "the rollout step before is back", lambda: self.query(
            run, "select 1 from item where rollout_step = ? and fate >= 1", first))
        seen = [items for items, _ in (self.until(run, "the worker holds some", lambda: (lambda h: h if h[0] else None)(held()))
                                       for _ in range(20))]
        self.assertLessEqual(max(seen), 2, seen)
        self.assertEqual(run.ctl("set", "inference_microbatch_size=64").returncode, 1)    # its memory was taken for 32

    # ---- training

    @proves("learning_rate", "lr_schedule", "lr_min_ratio", "warmup_steps", "max_steps")
    def test_the_learning_rate_follows_its_knobs_until_the_last_step(self):
        run = self.start(learning_rate=1e-5, num_episodes=100000)
        first = self.change(run, learning_rate=0.002)["learning_rate"]
        self.assertEqual([self.metrics(run, s)["train/learning_rate"] for s in (first - 1, first)], [1e-5, 0.002])
        n = run.step() + 400
        first = max(self.change(run, lr_schedule="linear", lr_min_ratio=0.5, max_steps=n).values())
        lr = self.metrics(run, first)["train/learning_rate"]
        self.assertAlmostEqual(lr, 0.002 + (0.001 - 0.002) * (first - 1) / n, delta=1e-12)    # the step with index first - 1 of n
        first = self.change(run, warmup_steps=n)["warmup_steps"]
        self.assertAlmostEqual(self.metrics(run, first)["train/learning_rate"], 0.002 * first / (n + 1), delta=1e-12)
        last = run.step() + 5
        self.change(run, max_steps=last)
        code, end = run.wait()
        self.assertEqual((code, end["event"], end["step"]), (0, "finished", max(last, run.step())), run.logs())
        self.assertLess(end["step"], n)

    @proves("max_steps")
    def test_without_max_steps_the_run_goes_through_its_episodes(self):
        run = self.start(num_episodes=20)    # of 64 prompts in steps of 8
        self.ok(run, "pause", "--depth", "step")
        self.change(run, max_steps=0)
        self.ok(run, "resume")
        code, end = run.wait()
        self.assertEqual((code, end["event"]), (0, "finished"), run.logs())
        # all passes, and what was open beyond them already
        self.assertEqual(end["step"] * 8, max(20 * 64, self.query(run, "select max(item) + 1 from item")[0][0]))

    @proves("max_hours")
    def test_the_run_ends_when_its_hours_are_over_and_a_resume_counts_them(self):
        run = self.start(save_at_end=True)
        self.change(run, max_hours=2e-4)
        code, end = run.wait()
        self.assertEqual((code, end["event"]), (0, "finished"), run.logs())
        self.assertRegex(end["reason"], r"the run has gone for [0-9.e-]+ h, and 'max_hours' is 0.0002")
        self.assertEqual(self.query(run, "select max(step) from checkpoint"), [(end["step"],)])
        again = Run(self.task, os.path.basename(run.dir), resume=True)
        self.addCleanup(again.kill)
        code, same = again.wait()
        self.assertEqual((code, same["event"], same["step"]), (0, "finished", end["step"]), again.logs())

    @proves("join_timeout_s")
    def test_a_run_waits_as_long_for_a_node_as_its_knob_says(self):
        run = super().start("--listen", f"127.0.0.1:{free_port()}", num_trainers=2, trainers_per_node=1, slow_s=0.2, join_timeout_s=0)
        self.until(run, "a trainer is missing", lambda: run.told("alert"))
        self.assertIn("waits for them without a limit", run.told("alert")[0]["text"])
        self.change(run, join_timeout_s=0.3)
        code, end = run.wait()
        self.assertEqual((code, end["event"]), (1, "failed"), run.logs())
        self.assertIn("'join_timeout_s'", end["reason"])

    @proves("clip_eps_low", "clip_eps_high", "skip_threshold", "kl_coeff")
    def test_the_loss_goes_by_its_knobs(self):
        # two optimizer steps for each rollout step: the second sees ratios that are not 1
        run = self.start(ignore_eos=True, learning_rate=1e-4, train_batch_size=4, clip_eps_low=1, clip_eps_high=100, kl_coeff=0.1, skip_threshold=0)
        run.wait_step(4)
        for name, value, metric in (("clip_eps_low", 0, "train/clip_low_ratio"), ("clip_eps_high", 0, "train/clip_high_ratio"),
                                    ("skip_threshold", 1e-9, "train/skipped_ratio")):
            with self.subTest(name):
                first = self.change(run, **{name: value})[name]
                self.assertEqual(max(self.series(run, metric, max(first - 3, 1), min(3, first - 1))), 0)
                self.assertGreater(max(self.series(run, metric, first, 4)), 0)
        first = self.change(run, skip_threshold=0, kl_coeff=0)["kl_coeff"]
        self.assertGreater(max(self.series(run, "train/kl", max(first - 3, 1), 3)), 0)
        self.assertFalse(max([v for v in self.series(run, "train/kl", first, 3) if not math.isnan(v)], default=0) > 0)

    @proves("ref_update_steps", "ref_update_alpha")
    def test_the_reference_moves_by_its_knobs(self):
        run = self.start(learning_rate=1e-3, kl_coeff=0.1, ref_update_alpha=0.6)
        run.wait_step(4)
        first = self.change(run, ref_update_steps=1, ref_update_alpha=1)["ref_update_steps"]
        self.assertGreater(min(self.series(run, "train/kl", max(first - 2, 2), 2)), 0)
        self.assertEqual(max(self.series(run, "train/kl", first + 1, 3)), 0)    # the reference is the policy that sampled
        first = self.change(run, ref_update_alpha=0.5)["ref_update_alpha"]
        self.assertGreater(min(self.series(run, "train/kl", first + 1, 3)), 0)

    @proves("loss_variation", "filter_range", "filter_truncated_response")
    def test_what_is_in_the_loss_goes_by_its_knobs(self):
        run = self.start(max_new_tokens=40)
        run.wait_step(4)    # so that there are steps before the change
        # on fresh samples the ratio is 1: the mean over samples of their advantages is 0, that over all tokens is not
        first = self.change(run, loss_variation="token_level")["loss_variation"]
        self.assertLess(max(map(abs, self.series(run, "train/loss", max(first - 3, 1), 3))), 1e-6)
        self.assertGreater(max(map(abs, self.series(run, "train/loss", first, 5))), 1e-5)
        first = self.change(run, filter_truncated_response="true")["filter_truncated_response"]
        before, after = self.metrics(run, first - 1), self.metrics(run, first)
        self.assertGreater(after["metrics/truncated_ratio"], 0)
        self.assertEqual(before["train/sample_utilization"], 1)
        self.assertAlmostEqual(after["train/sample_utilization"], 1 - after["metrics/truncated_ratio"], delta=1e-9)
        first = self.change(run, filter_range="[0.3, 0.7]")["filter_range"]
        self.assertEqual(max(self.series(run, "metrics/filtered_ratio", max(first - 5, 1), 5)), 0)
        self.assertGreater(max(self.series(run, "metrics/filtered_ratio", first, 5)), 0)

    @proves("rho_clamp", "rho_mask")
    def test_the_correction_goes_by_its_bounds(self):
        # two optimizer steps for each rollout step: the second has other weights than its samples
        run = self.start(ignore_eos=True, learning_rate=1e-4, train_batch_size=4, old_logprobs="current", rho_clamp=[0, 1e6], rho_mask=[0, 1e6])
        run.wait_step(4)
        for name, metric in (("rho_clamp", "train/rho_clamped_ratio"), ("rho_mask", "train/rho_masked_ratio")):
            with self.subTest(name):
                first = self.change(run, **{name: "[0.999999, 1.000001]"})[name]
                self.assertEqual(max(self.series(run, metric, max(first - 3, 1), min(3, first - 1))), 0)
                self.assertGreater(max(self.series(run, metric, first, 4)), 0)

    def test_the_temperature_is_annealed_with_each_sample_trained_at_its_own_and_lengths_grow(self):
        run = self.start(temperature=1.25, temperature_end=0.25, temperature_steps=4, ignore_eos=True, max_new_tokens=12,
                         max_new_tokens_start=4, max_new_tokens_steps=4)
        self.assertEqual(self.series(run, "rollout/temperature", 1, 6), [1.25, 1, 0.75, 0.5, 0.25, 0.25])
        self.assertEqual(self.series(run, "metrics/response_length", 1, 6), [4, 6, 8, 10, 12, 12])
        # log-probs at another temperature than the sampler's would differ
        self.assertEqual(max(self.series(run, "train/sampler_trainer_diff", 1, 6)), 0)

    @proves("filter_no_spread")
    def test_groups_without_spread_are_filtered_when_asked(self):
        run = self.start(num_generations=2, max_new_tokens=2)    # so short that two often have the same reward
        run.wait_step(4)
        first = self.change(run, filter_no_spread="true")["filter_no_spread"]
        self.assertEqual(max(self.series(run, "metrics/filtered_ratio", max(first - 3, 1), 3)), 0)
        self.assertGreater(max(self.series(run, "metrics/no_spread_ratio", max(first - 3, 1), 3)), 0)
        filtered, same = (self.series(run, f"metrics/{m}_ratio", first + 1, 4) for m in ("filtered", "no_spread"))
        self.assertGreater(max(filtered), 0)
        self.assertEqual(filtered, same)

    @proves("waste_alert", "waste_limit")
    def test_a_run_that_learns_nothing_goes_by_its_knobs(self):
        # no mean reward of a group is so near to 1: every group is filtered
        run = super().start(filter_range=[0.999, 0.9999], waste_alert=0, waste_limit=0)    # it never ends a step
        self.until(run, "a journal", lambda: run.step() >= 0)
        items = lambda: self.query(run, "select count(*) from item where fate >= 2")[0][0]
        alerts = lambda: self.query(run, "select text from event where kind = 'alert'")
        self.until(run, "64 samples are filtered", lambda: items() >= 16)
        self.assertEqual(alerts(), [])
        self.change(run, waste_alert=32)
        self.until(run, "an alert", alerts)
        self.assertIsNone(run.process.poll())
        self.change(run, waste_limit=64)
        code, end = run.wait()
        self.assertEqual((code, end["event"]), (1, "failed"), run.logs())
        self.assertIn("waste_limit is 64", end["reason"])

    @proves("max_norm", "weight_decay", "learning_rate")
    def test_the_update_goes_by_its_knobs(self):
        # without moments a gradient clipped to nothing moves nothing, and weight decay alone is left
        run = self.start(learning_rate=1e-3, adam_beta1=0, adam_beta2=0, weight_decay=0)
        moved = [self.checkpoint(run)[1]]
        run.wait_step(run.step() + 2)
        moved.append(self.checkpoint(run)[1])
        self.assertNotEqual(*moved)
        run.wait_step(self.change(run, max_norm=1e-30)["max_norm"])
        (a, still), _ = self.checkpoint(run), run.wait_step(run.step() + 3)
        b, same = self.checkpoint(run)
        self.assertGreater(b, a)
        self.assertEqual(hashlib.sha256(still).digest(), hashlib.sha256(same).digest())
        run.wait_step(self.change(run, learning_rate=0.01, weight_decay=1)["weight_decay"])
        (a, before), _ = self.checkpoint(run), run.wait_step(run.step() + 3)
        b, after = self.checkpoint(run)
        self.assertAlmostEqual(self.norm(after) / self.norm(before), 0.99 ** (b - a), delta=1e-5)    # w -= lr decay w, per step

    def norm(self, shard):
        """Of all numbers (fp32) in a safetensors file."""
        header, = struct.unpack("<Q", shard[:8])
        return math.sqrt(math.fsum(v * v for v, in struct.iter_unpack("<f", shard[8 + header:])))

    @proves("train_microbatch_size", "token_budget")
    def test_one_forward_and_backward_takes_what_its_knobs_say(self):
        run = self.start(train_microbatch_size=8, ignore_eos=True)    # of 64 + 12 tokens each, all of a step's 32 samples at half that length in two
        few = self.metrics(run, 1)["train/micro_batches"]
        first = self.change(run, train_microbatch_size=1)["train_microbatch_size"]
        before, many = (self.metrics(run, s)["train/micro_batches"] for s in (first - 1, first))
        self.assertEqual(before, few)
        self.assertGreaterEqual(many, 3 * few)    # an eighth of the tokens, rounded by samples
        first = self.change(run, token_budget=8 * 76)["token_budget"]
        self.assertEqual(self.metrics(run, first)["train/micro_batches"], few)
        self.assertEqual(run.ctl("set", "token_budget=609").returncode, 1)    # memory was taken for 608

    # ---- evaluation and saving

    @proves("eval_interval", "eval_temperature", "eval_top_p", "eval_max_new_tokens", "eval_at_end", "save_at_end", "max_steps")
    def test_evaluations_and_the_end_go_by_their_knobs(self):
        run = self.start(eval_dataset=json.dumps({"small": {"path": self.task.path("train.jsonl"), "limit": 4, "n": 4}}), eval_at_end=True,
                         eval_interval=-1, eval_temperature=1)

        def answers(step):
            with open(self.until(run, f"evaluation of step {step}", lambda: (lambda p: p if os.path.exists(p) else None)(
                    os.path.join(run.dir, f"eval/small_training_step_{step}.jsonl")))) as f:
                rows = [json.loads(line) for line in f]
            out, lengths = {}, [r["response_length"] for r in rows]
            for r in rows:
                out.setdefault(r["row"], set()).add(r["prediction"])
            self.assertEqual((len(rows), len(out)), (16, 4))
            means = dict(self.query(run, f"select set_name, mean from eval where step={step}")) or self.until(
                run, f"results of step {step}", lambda: dict(self.query(run, f"select set_name, mean from eval where step={step}")))
            self.assertEqual(sorted(means), ["small", "small/pass_at_2", "small/pass_at_4"])
            solved = {row: [r["ans_valid"] for r in rows if r["row"] == row] for row in out}
            self.assertEqual(means["small/pass_at_4"], sum(map(any, solved.values())) / 4)
            return out.values(), lengths

        self.assertEqual(self.query(run, "select * from eval"), [])
        self.change(run, eval_interval=3)
        step = -(-(run.step() + 1) // 3) * 3
        different, lengths = answers(step)
        self.assertGreater(max(map(len, different)), 1)
        self.assertGreater(max(lengths), 3)
        self.change(run, eval_temperature=0)
        step = -(-(run.step() + 4) // 3) * 3    # one may be under way
        self.assertEqual(max(map(len, answers(step)[0])), 1)    # greedy: all answers to a prompt are the same
        self.change(run, eval_temperature=1, eval_top_p=1e-6, eval_max_new_tokens=3)
        step = -(-(run.step() + 4) // 3) * 3
        different, lengths = answers(step)
        self.assertEqual((max(map(len, different)), max(lengths)), (1, 3))    # as good as greedy
        self.assertTrue(all(s % 3 == 0 for s, in self.query(run, "select step from eval")))
        self.ok(run, "pause", "--depth", "step")
        last = run.step() + (2 if (run.step() + 2) % 3 else 1)    # no step of the interval
        self.change(run, eval_at_end="false", save_at_end="false", max_steps=last)
        self.ok(run, "resume")
        code, end = run.wait()
        self.assertEqual((code, end["event"], end["step"]), (0, "finished", last), run.logs())
        self.assertNotIn(last, [s for s, in self.query(run, "select step from eval")])
        self.assertEqual(self.checkpoints(run), [])

    def test_a_checkpoint_is_saved_when_an_episode_ends(self):
        with open(self.task.path("few.jsonl"), "w") as out, open(self.task.path("train.jsonl")) as rows:
            out.writelines(next(rows) for _ in range(20))    # an episode ends within the third step of 8 prompts
        run = self.start("--max-steps", "4", dataset=self.task.path("few.jsonl"), save_interval=0, save_at_episode_end=True, save_at_end=False)
        code, end = run.wait()
        self.assertEqual((code, end["event"], end["step"]), (0, "finished", 4), run.logs())
        self.assertEqual([r[0] for r in self.query(run, "select step from checkpoint")], [3])

    @proves("save_interval", "keep_checkpoints", "rollout_log_interval")
    def test_checkpoints_and_logs_go_by_their_knobs(self):
        run = self.start(rollout_log_interval=0)
        log = os.path.join(run.dir, "rollouts/log.jsonl")

        def logged():
            with open(log) as f:
                return [json.loads(line)["train_step"] for line in f if line.endswith("\n")]

        self.assertEqual((self.checkpoints(run), logged() if os.path.exists(log) else []), ([], []))
        self.change(run, save_interval=7)
        kept = self.until(run, "four checkpoints", lambda: (lambda c: c if len(c) >= 4 else None)(self.checkpoints(run)))
        self.assertEqual(kept[0] % 7, 0)    # later ones wait while one is being written
        self.change(run, keep_checkpoints=1)
        self.until(run, "checkpoints are pruned", lambda: len(self.checkpoints(run)) <= 2 and kept[-1] not in self.checkpoints(run))
        self.change(run, rollout_log_interval=3)
        steps = self.until(run, "logged steps", lambda: (lambda s: s if len(s) >= 3 else None)(logged()))
        self.assertEqual({b - a for a, b in zip(steps[-3:], steps[-2:])}, {3})

    # ---- watching

    @proves("slow_s", "stuck_s", "restart_stuck_s")
    def test_slow_and_stuck_are_reported_and_ended_by_their_knobs(self):
        holds = Holds(self.task.path("holds"))
        run = self.start(env={"RC_TEST_HOLD": holds.dir}, slow_s=10000, stuck_s=20000, restart_stuck_s=0, heartbeat_s=0.05)

        def worker():
            return next(p for p in self.status(run)["processes"] if p["kind"] == "worker")

        holds.arm("worker cpu:0", "training")
        self.until(run, "the worker is held", lambda: holds.held("worker cpu:0", "training"))
        pid = worker()["pid"]
        self.until(run, "it stands still", lambda: worker()["phase"] == "training")
        self.assertEqual(worker()["verdict"], "ok")
        self.change(run, slow_s=0.3)
        self.until(run, "it is slow", lambda: worker()["verdict"] == "slow")
        self.change(run, stuck_s=0.4)
        self.until(run, "it is stuck", lambda: worker()["verdict"] == "stuck")
        self.assertEqual(worker()["pid"], pid)
        self.change(run, restart_stuck_s=0.2)    # the hold is of this process only: the next one is free
        self.until(run, "it is started again", lambda: run.processes().get("worker cpu:0", pid) != pid)


if __name__ == "__main__":
    unittest.main()
