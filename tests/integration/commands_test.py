"""tags: limit=600

Every command of an operator, one by one: what it has done when it is answered, what the journal says about it, and that an id is
carried out once. Pausing, stopping and restarting have tests of their own beside these (control_test, kills_test)."""
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, RunCase

# Every setting that may change while a run goes, with a value that is neither the default nor the tests'.
LIVE = dict(
    max_steps="99999", max_hours="99", join_timeout_s="99", inference_batch_size="16", inference_microbatch_size="4", train_batch_size="4",
    train_microbatch_size="3", token_budget="150", num_generations="6", temperature="0.8", top_k="9", top_p="0.9", min_p="0.01", min_new_tokens="2",
    max_new_tokens="11", kl_coeff="0", clip_eps_low="0.1", clip_eps_high="0.3", loss_variation="token_level", filter_range="[0, 1]",
    filter_truncated_response="true", filter_no_spread="true", rho_clamp="[0, 3]", rho_mask="[0.1, 10]", skip_threshold="30", learning_rate="0.002", lr_schedule="linear", lr_min_ratio="0.2",
    warmup_steps="3", weight_decay="0.02", max_norm="2", eval_interval="1000", eval_temperature="0.3", eval_top_p="0.9", eval_max_new_tokens="9", eval_at_end="false",
    ref_update_steps="7", ref_update_alpha="0.5", curriculum_pass_rate="0.7", curriculum_easier_rate="0.1", curriculum_groups="32",
    save_interval="50", save_at_end="false", keep_checkpoints="5", rollout_log_interval="7", slow_s="4", stuck_s="40", restart_stuck_s="300",
    waste_alert="100", waste_limit="10000000")


class Commands(RunCase):
    def start(self, *extra, **settings):
        run = super().start(*extra, **settings)
        run.wait_step(1)
        return run

    def query(self, run, text):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return db.execute(text).fetchall()

    def commands(self, run):
        return self.query(run, "select who, text from event where kind = 'command' order by seq")

    def test_every_live_knob_changes_while_the_run_goes_and_is_in_the_audit_trail(self):
        table = subprocess.run([ROLLCALL, "settings"], capture_output=True, text=True, timeout=LIMIT).stdout
        rows = [[c.strip() for c in line.split("|")] for line in table.splitlines() if line.startswith("| `")]
        self.assertEqual({r[1].split("`")[1] for r in rows if r[5] != "start"}, set(LIVE), "a knob without a value here, or the other way round")
        run = self.start(old_logprobs="current")
        before = self.status(run)["knobs"]
        self.ok(run, "set", *(f"{k}={v}" for k, v in LIVE.items()))    # all of them, or none
        after = self.status(run)["knobs"]
        told = "\n".join(text for _, text in self.commands(run))
        for name, value in LIVE.items():
            want = {"true": True, "false": False}.get(value, value)
            got = after[name]
            self.assertEqual(float(want) if isinstance(got, float) else type(got)(want), got, name)
            self.assertIn(f"{name}: ", told)
        run.wait_step(run.step() + 2)    # and it goes on with them
        who, _ = self.commands(run)[0]
        self.assertIn("ctl", who)
        self.ok(run, "revert")           # all of them again, in one
        self.assertEqual({k: self.status(run)["knobs"][k] for k in LIVE}, {k: before[k] for k in LIVE})
        run.wait_step(run.step() + 2)

    def test_a_proposal_is_taken_whole_or_not_at_all(self):
        run = self.start()
        for bad, code in (("nonsense=1", 2), ("temperature=-1", 2), ("seed=7", 1), ("train_minibatch_size=4", 1), ("token_budget=100000", 1)):
            done = run.ctl("set", "learning_rate=0.5", bad)
            self.assertIn(done.returncode, (1, 2), bad)
            self.assertIn(bad.split("=")[0], done.stderr)
            self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.001, bad)
        self.assertEqual(run.ctl("revert").returncode, 1)    # nothing has been changed
        done = run.ctl("eval")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("the run has no evaluation set", done.stderr)

    def test_an_id_is_carried_out_once_and_answered_alike(self):
        run = self.start()
        first = self.ok(run, "set", "learning_rate=0.002", "--id", "mine-1")
        self.assertEqual(self.ok(run, "set", "learning_rate=0.003", "--id", "mine-1"), first)
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.002)
        self.assertEqual(sum("0.002" in text for _, text in self.commands(run)), 1)
        refused = run.ctl("set", "learning_rate=9", "--id", "mine-2")
        again = run.ctl("set", "learning_rate=0.004", "--id", "mine-2")
        self.assertEqual((refused.returncode, refused.stderr), (again.returncode, again.stderr))
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.002)
        os.kill(run.processes()["controller"], 9)    # ids outlive the controller
        self.assertEqual(self.ok(run, "set", "learning_rate=0.003", "--id", "mine-1"), first)

    def test_a_pause_is_no_part_of_a_step_s_time_nor_of_the_estimate(self):
        run = self.start("--max-steps", "100000")
        self.ok(run, "pause", "step")
        step, began = self.status(run)["step"], time.monotonic()
        time.sleep(5)    # what is measured is time
        self.ok(run, "resume")
        paused = time.monotonic() - began
        run.wait_step(step + 1)
        self.until("its line", lambda: [line for line in run.told("step") if line["step"] == step + 1], run)
        first = next(line for line in run.told("step") if line["step"] == step + 1)["metrics"]
        self.assertLess(first["time/step_s"], paused)
        self.assertLess(first.get("time/idle_s", 0), paused)

    def test_a_death_says_who_by_what_and_that_nothing_is_lost(self):
        run = self.start(save_interval=2)
        self.until("a checkpoint", lambda: run.journal_number("select count(*) from checkpoint where state = 'complete'") > 0, run)
        pid = run.processes()["worker cpu:0"]
        os.kill(pid, 9)
        self.until("it is said", lambda: self.query(run, "select 1 from event where kind = 'return'"), run)
        self.until("who", lambda: self.query(run, "select 1 from event where kind = 'process'"), run)
        text = self.query(run, "select text from event where kind = 'process'")[0][0]
        self.assertRegex(text, rf"^'worker cpu:0' \(pid {pid}\) was killed by signal 9 \(SIGKILL\) after [0-9.]+ s and is started again; nothing is lost: ")
        text = self.query(run, "select text from event where kind = 'return'")[0][0]
        self.assertRegex(text, r"^back from step \d+ to \d+: worker cpu:0 holds no weights of step \d+; nothing is lost")

    def test_a_note_is_on_the_time_line_whoever_has_the_control(self):
        run = self.start()
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        subprocess.run([ROLLCALL, "ctl", "--run", run.dir, "lock"], stdin=theirs, stdout=subprocess.DEVNULL, timeout=LIMIT, check=True)
        text = 'rewards changed: "boxed" <b>'
        self.assertIn("note: " + text, self.ok(run, "note", text))
        self.assertIn("note: " + text, [told for _, told in self.commands(run)])
        self.assertEqual(json.loads(self.query(run, "select detail from event where text like 'note:%'")[0][0]), {"note": text})
        self.assertEqual(run.ctl("note").returncode, 2)
        self.assertIn("longer than 191 bytes", run.ctl("note", "x" * 192).stderr)
        page = subprocess.run([ROLLCALL, "export", "html", run.dir], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
        self.assertIn("note: rewards changed: &quot;boxed&quot; &lt;b&gt;", page)

    def test_who_has_taken_the_control_is_the_only_one_obeyed_until_it_is_forced(self):
        run = self.start()
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        subprocess.run([ROLLCALL, "ctl", "--run", run.dir, "lock"], stdin=theirs, stdout=subprocess.DEVNULL, timeout=LIMIT, check=True)    # we have no terminal ourselves
        holder = self.status(run)["lock"]["holder"]
        self.assertIn(", ctl on pts/", holder)
        for words in (("set", "learning_rate=0.002"), ("restart", "scorer"), ("unlock",), ("lock",), ("pause",)):
            refused = run.ctl(*words)
            self.assertEqual(refused.returncode, 1, words)
            self.assertIn(f"refused: {holder} has had control of the run for ", refused.stderr)
            self.assertIn(f"rollcall ctl --force {words[0]}", refused.stderr)    # what would work
        self.assertIn(f"lock: {holder} has control", self.ok(run, "status"))
        os.kill(run.processes()["controller"], 9)    # it outlives the controller
        self.until("the controller is back", lambda: "lock" in self.status(run), run)
        self.assertEqual(run.ctl("set", "learning_rate=0.002").returncode, 1)
        self.ok(run, "--force", "set", "learning_rate=0.002")
        self.assertTrue([text for _, text in self.commands(run) if text == f"'set' in spite of the control that {holder} has"])
        self.assertIn(f"taken from {holder}", self.ok(run, "lock", "force"))
        self.ok(run, "unlock")
        self.assertNotIn("lock", self.status(run))
        self.assertEqual(run.ctl("unlock").returncode, 1)

    def test_a_drained_run_holds_nothing_and_is_saved(self):
        run = self.start(n_behind=1, save_interval=0)
        self.ok(run, "pause", "--depth", "drain")
        status = self.status(run)
        self.assertEqual((status["state"], status["pause_depth"]), ("paused", "drain"))
        self.assertEqual(status["buffer"]["generating"], 0)
        self.assertEqual(status["checkpoint"], status["step"])
        self.assertTrue(run.weights(status["step"]))
        self.ok(run, "resume")
        run.wait_step(status["step"] + 1)

    def test_evaluating_now_is_done_when_it_is_answered(self):
        run = self.start(eval_dataset=json.dumps({"small": {"path": self.task.path("train.jsonl"), "limit": 4}}), eval_at_end=False)
        self.ok(run, "pause")
        step = self.status(run)["step"]
        self.ok(run, "eval")
        self.assertEqual(self.status(run)["eval"]["small"]["step"], step)
        self.assertEqual(self.status(run)["eval"]["small"]["n"], 4)
        self.assertTrue([text for text, in self.query(run, "select text from event where kind = 'eval'") if f"step {step}" in text])

    def test_a_prompt_in_quarantine_is_issued_no_more(self):
        with open(self.task.path("train.jsonl")) as f:    # the first line is too long a prompt, and the second one blank
            rows = f.readlines()
        long = json.loads(rows[0])
        long["messages"] = [{"role": "user", "content": "1 + " * 4000}]
        lines = [json.dumps(long) + "\n", "\n", *rows]    # in two files, through which lines are counted
        for name, part in (("gaps-1.jsonl", lines[:5]), ("gaps-2.jsonl", lines[5:])):
            with open(self.task.path(name), "w") as f:
                f.writelines(part)
        run = self.start("--num-episodes", "1000", "--dataset", self.task.path("gaps-*.jsonl"))
        self.ok(run, "pause", "--depth", "drain")
        last = self.query(run, "select max(item) from item")[0][0]
        self.ok(run, "quarantine", "8")    # the sixth prompt that is used
        done = run.ctl("quarantine", "8")
        self.assertEqual(done.returncode, 1)
        self.assertIn("already", done.stderr)
        self.assertIn("gaps-2.jsonl', line or row 3)", done.stderr)
        for line in ("1", "2", "67"):
            done = run.ctl("quarantine", line)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"line {line} ", done.stderr)
        self.ok(run, "resume")
        end = time.monotonic() + LIMIT
        while self.query(run, "select max(item) from item")[0][0] < last + 3 * 64 and time.monotonic() < end:    # three rounds of the data
            time.sleep(0.05)
        rows = [r for r, in self.query(run, f"select prompt_row from item where item > {last}")]
        self.assertGreaterEqual(len(rows), 3 * 64)
        self.assertNotIn(5, rows[64:])    # what was issued already is not called back
        self.assertIn(6, rows[64:])
        self.assertTrue(any("line 8" in text for _, text in self.commands(run)))
        # what was sampled is found by the same number
        done = subprocess.run([ROLLCALL, "rollouts", run.dir, "--line", "9"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({(r["line"], r["row"]) for r in found}, {(9, 6)})
        asked = json.loads(lines[8])["messages"][-1]["content"]
        self.assertTrue(all(asked in r["prompt"] for r in found), asked)

    def test_a_dropped_group_is_trained_on_without_any_of_its_samples(self):
        run = self.start("--num-episodes", "1000")
        self.ok(run, "pause", "--depth", "step")
        returned, trained = 1, 4    # fates in the journal
        waits = f"select item, file_offset from item where fate = {returned} and reward_mean is not null order by item"
        end = time.monotonic() + LIMIT
        while not self.query(run, waits) and time.monotonic() < end:    # none was being sampled when the pause came
            self.ok(run, "resume")
            self.ok(run, "pause", "--depth", "step")
        item, offset = self.query(run, waits)[0]
        self.ok(run, "drop", str(item))
        self.assertNotEqual(self.query(run, f"select file_offset from item where item = {item}"), [(offset,)])
        self.assertEqual(self.query(run, f"select reward_mean from item where item = {item}"), [(None,)])
        again = run.ctl("drop", str(item))
        self.assertEqual(again.returncode, 1)
        self.assertIn("no sample of item", again.stderr)
        out = run.ctl("drop", "999999")
        self.assertEqual(out.returncode, 1)
        self.assertIn("the group of item 999999 is not among those that wait for training", out.stderr)
        first = self.query(run, f"select item from item where fate = {trained} order by item")[0][0]
        self.assertIn(f"the group of item {first} ", run.ctl("drop", str(first)).stderr)
        self.ok(run, "restart", "controller")    # it reads the new record
        self.ok(run, "resume")
        while self.query(run, f"select fate from item where item = {item}") != [(trained,)] and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.query(run, f"select fate, reward_mean from item where item = {item}"), [(trained, None)])
        done = subprocess.run([ROLLCALL, "rollouts", run.dir, "--item", str(item)], capture_output=True, text=True, timeout=LIMIT)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        n = len(found) // 2    # as it came, and as it was dropped
        self.assertTrue(any(r["scored"] for r in found[:n]))
        self.assertTrue(all(not r["scored"] and r["reason"].startswith("dropped by ") for r in found[n:]))
        self.assertEqual([r["text"] for r in found[:n]], [r["text"] for r in found[n:]])
        self.assertTrue(any(f"item {item} is left out of training" in text for _, text in self.commands(run)))

    def test_an_item_in_flight_is_dropped_once_and_stays_so_through_a_kill(self):
        worker, holds = "worker cpu:0", Holds(self.task.path("holds of drop"))
        holds.arm(worker, "generating")    # before it has drawn a token: none of its items can be on its way back
        run = RunCase.start(self, "--num-episodes", "1000", env=dict(RC_TEST_HOLD=holds.dir))
        issued, trained, stopped = 0, 4, 5    # fates in the journal
        self.until("a worker has items", lambda: holds.held(worker, "generating") and self.status(run)["buffer"]["generating"] > 0, run)
        item = self.query(run, f"select min(item) from item where fate = {issued}")[0][0]
        fate = f"select fate, file_bytes from item where item = {item}"
        self.assertIn(f"item {item} is dropped", self.ok(run, "drop", str(item)))
        pid = run.processes()["controller"]
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(self.query(run, fate), [(stopped, -1)])
        again = None

        def refused():    # once another controller answers
            nonlocal again
            again = run.ctl("drop", str(item))
            return f"the group of item {item} " in again.stderr
        holds.disarm(worker, "generating")
        self.until("a second drop is refused", refused, run)
        self.assertEqual(again.returncode, 1)
        step = run.step()
        self.until("later items are trained on", lambda: self.query(run, f"select count(*) from item where item > {item} and fate = {trained}")[0][0] > 8, run)
        self.ok(run, "set", f"max_steps={max(step, run.step()) + 3}")
        self.assertEqual(run.wait()[0], 0)    # it ends without the group
        self.assertEqual(self.query(run, fate), [(stopped, -1)])
        done = subprocess.run([ROLLCALL, "rollouts", run.dir, "--item", str(item)], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len([1 for _, text in self.commands(run) if f"item {item} is dropped" in text]), 1)

    def test_a_group_is_scored_again_and_keeps_its_new_rewards_through_a_kill(self):
        flag = self.task.path("mended")    # what the operator mends in the reward
        hold, holds = self.task.path("hold"), Holds(self.task.path("holds of rescore"))
        reward = f"""program:while read -r line; do while [ -e {hold} ]; do sleep 0.05; done; id=${{line#*'"id":'}}; good=0; [ -e {flag} ] && good=1; echo '{{"id":'${{id%%,*}}',"reward":'$good',"ans_acc":'$good'}}'; done"""
        run = self.start(env=dict(RC_TEST_HOLD=holds.dir), reward_type=reward, waste_limit=0, waste_alert=0)
        self.ok(run, "pause", "--depth", "step")
        returned, trained = 1, 4    # fates in the journal
        waits = f"select item, file_offset from item where fate = {returned} and reward_mean is not null order by item"

        def samples(item):
            done = subprocess.run([ROLLCALL, "rollouts", run.dir, "--item", str(item)], capture_output=True, text=True, timeout=LIMIT)
            return [json.loads(line) for line in done.stdout.splitlines()]

        def ended(item):    # a cut answer is worth nothing, whatever the program says
            return [int(r["finish_reason"] == "stop") for r in samples(item)[:4]]

        def words(rewards):
            return f"{' '.join(map(str, rewards))}, mean {sum(rewards) / 4:.4g}"

        def found():    # a group that waits and has an answer that ended
            return [i for i in self.query(run, waits) if any(ended(i[0]))]
        end = time.monotonic() + LIMIT
        while (not found() or len(self.query(run, waits)) < 2) and time.monotonic() < end:
            self.ok(run, "resume")
            self.ok(run, "pause", "--depth", "step")
        item, offset = found()[0]
        new, mean = ended(item), f"select reward_mean from item where item = {item}"
        self.assertIn(f"item {item} is scored as before: rewards 0 0 0 0, mean 0;", self.ok(run, "rescore", str(item)))
        self.assertEqual(self.query(run, mean), [(0,)])
        open(flag, "w").close()
        self.assertIn(f"item {item} has new rewards {words(new)}; before: 0 0 0 0, mean 0", self.ok(run, "rescore", str(item)))
        self.assertEqual(self.query(run, mean), [(sum(new) / 4,)])
        self.assertNotEqual(self.query(run, f"select file_offset from item where item = {item}"), [(offset,)])
        old = next(i for i, in self.query(run, f"select item from item where fate = {trained} order by item") if any(ended(i)))
        said = self.ok(run, "rescore", str(old))
        self.assertIn(f"item {old} is not changed, only shown: rewards {words(ended(old))}; before: 0 0 0 0, mean 0", said)
        self.assertEqual(self.query(run, f"select reward_mean from item where item = {old}"), [(0,)])
        rescore = lambda i: subprocess.Popen([ROLLCALL, "ctl", "--run", run.dir, "rescore", str(i)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        busy = lambda: "one at a time" in run.ctl("rescore", "999999").stderr
        scorer = lambda: next(p["phase"] for p in self.status(run)["processes"] if p["name"] == "scorer")
        open(hold, "w").close()    # one that ends in the turn of the loop in which the next is asked for is answered, too
        with rescore(old) as first:
            self.until("the first is being scored", lambda: busy() and scorer() == "scoring", run)
            holds.arm("controller", "answering")
            with rescore(999999) as refused:
                self.until("the controller stands still", lambda: holds.held("controller", "answering"), run)
                os.unlink(hold)
                self.until("it is scored", lambda: scorer() == "waiting", run)
                next_one = next(i for i, in self.query(run, f"select item from item where fate = {trained} order by item") if i != old)
                with rescore(next_one) as second:
                    self.status(run)    # by the same agent, after it
                    holds.disarm("controller", "answering")
                    for asked, of in ((first, old), (second, next_one)):
                        self.assertIn(f"item {of} is ", asked.communicate(timeout=LIMIT)[0])
                refused.communicate(timeout=LIMIT)
        other = next(i for i, _ in self.query(run, waits) if i != item)
        open(hold, "w").close()    # dropped while the scorer has its answers, it stays so
        with rescore(other) as asked:
            self.until("the group is being scored", busy, run)
            self.ok(run, "drop", str(other))
            os.unlink(hold)
            self.assertIn("(its group was changed meanwhile)", asked.communicate(timeout=LIMIT)[0])
        self.assertEqual(self.query(run, f"select reward_mean from item where item = {other}"), [(None,)])
        out = run.ctl("rescore", "999999")
        self.assertEqual(out.returncode, 1)
        self.assertIn("item 999999 has no group that was kept", out.stderr)
        pid = next(p["pid"] for p in self.status(run)["processes"] if p["name"] == "controller")
        os.kill(pid, signal.SIGKILL)
        self.until("another controller answers", lambda: run.ctl("status", "--json").returncode == 0
                   and next(p["pid"] for p in self.status(run)["processes"] if p["name"] == "controller") not in (0, pid), run)
        self.assertEqual(self.query(run, mean), [(sum(new) / 4,)])
        os.unlink(flag)    # from here on rewards are 0 again, but for this group's
        self.ok(run, "resume")
        self.until("the group has been trained on", lambda: self.query(run, f"select fate from item where item = {item}") == [(trained,)], run)
        self.assertEqual(self.query(run, mean), [(sum(new) / 4,)])
        found = samples(item)
        self.assertEqual([r["reward"] for r in found], 4 * [0] + new)
        self.assertEqual([r["text"] for r in found[:4]], [r["text"] for r in found[4:]])
        self.assertTrue(any(f"item {item} has new rewards" in text for _, text in self.commands(run)))

    def test_where_lines_are_left_out_in_too_many_places_a_quarantine_says_so(self):
        with open(self.task.path("train.jsonl")) as f:
            row = f.readline()
        with open(self.task.path("holes.jsonl"), "w") as f:
            f.writelines([row, "\n"] * 65537)
        run = self.start("--num-episodes", "1000", "--dataset", self.task.path("holes.jsonl"))
        done = run.ctl("quarantine", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("unusable lines in more than 65536 places", done.stderr)

    def test_a_limit_that_passes_names_the_late_process(self):
        run = self.start(eval_dataset=json.dumps({"small": {"path": self.task.path("train.jsonl"), "limit": 4}}), eval_at_end=False)
        worker = run.processes()["worker cpu:0"]
        os.kill(worker, 19)
        late = run.ctl("eval", "--limit", "1")
        os.kill(worker, 18)
        self.assertEqual(late.returncode, 1)
        self.assertRegex(late.stderr, re.compile("'eval' has not taken effect in time; it waits for worker cpu:0"))
        self.assertTrue(any("has not taken effect" in text for _, text in self.commands(run)))


if __name__ == "__main__":
    unittest.main()
