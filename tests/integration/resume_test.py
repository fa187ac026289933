"""tags: long-asan limit=900

Train 20 steps; train 10, kill -9 everything, resume, train 10 more: the same bytes. And what a setting given at resume means."""
import contextlib
import glob
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, Run, Task, written


class Resume(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.runs = []

    def tearDown(self):
        for run in self.runs:
            run.kill()
        self.task.close()

    def start(self, *args, **kwargs):
        self.runs.append(Run(self.task, *args, **kwargs))
        return self.runs[-1]

    def finish(self, run, step):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", step), run.logs())
        self.assertEqual(run.steps(), list(range(1, step + 1)))
        self.assertEqual(run.processes(), {})

    def compare(self, **settings):
        file = self.task.run_file(**settings)
        straight = self.start("straight", file, ["--max-steps", "20"])
        self.finish(straight, 20)
        killed = self.start("killed", file, ["--max-steps", "20"])
        killed.wait_step(10)
        killed.kill()
        self.finish(self.start("killed", resume=True), 20)
        self.assertNotEqual(straight.weights(4), straight.weights(20))
        self.assertEqual(straight.weights(20), killed.weights(20))
        self.assertEqual(straight.ledger(), killed.ledger())

    def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bytes(self):
        self.compare(kl_coeff=0.05, ref_update_steps=3, ref_update_alpha=0.5)    # 10 is no multiple of 3: the reference is a kept one

    def test_a_run_whose_machine_is_lost_goes_on_elsewhere_from_the_copy_of_its_journal(self):
        here, there = self.task.path("disk-of-a"), self.task.path("disk-of-b")
        straight = self.start("straight", self.task.run_file(), ["--max-steps", "20"])
        lost = self.start("lost", self.task.run_file("lost.yaml", journal_dir=here), ["--max-steps", "20"])
        self.finish(straight, 20)
        lost.wait_step(10)
        lost.kill()
        self.assertTrue(os.path.realpath(os.path.join(lost.dir, "journal.db")).startswith(os.path.realpath(here)))
        os.rename(here, here + "-lost")
        looked = subprocess.run([ROLLCALL, "export", "jsonl", lost.dir], capture_output=True, text=True, timeout=LIMIT)    # from any machine
        seen = [json.loads(line)["step"] for line in looked.stdout.splitlines()]
        self.assertEqual(seen, list(range(1, len(seen) + 1)), looked.stderr)
        self.assertGreaterEqual(len(seen), 8)
        unheard = subprocess.run([ROLLCALL, "train", "--batch", "--resume", lost.dir, "--journal-dir", "/proc/none"], capture_output=True,
                                 text=True, timeout=LIMIT)
        self.assertNotEqual(unheard.returncode, 0)
        self.assertIn("/proc/none", unheard.stderr)
        again = self.start("lost", resume=True, extra=["--journal-dir", there])
        self.finish(again, 20)
        self.assertIn("the run goes on from its snapshot", written(again.errors))
        self.assertEqual(straight.weights(20), again.weights(20))
        self.assertEqual(straight.ledger(), again.ledger())
        os.rename(there, there + "-lost")
        os.unlink(os.path.join(lost.dir, "journal.snapshot"))
        none = subprocess.run([ROLLCALL, "train", "--batch", "--resume", lost.dir], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(none.returncode, 1)
        self.assertIn("is '" + os.path.realpath(self.task.dir), none.stderr)
        self.assertIn("which has left no journal.snapshot here", none.stderr)

    def test_a_head_that_another_machine_has_replaced_ends_and_writes_over_nothing(self):
        run = self.start("replaced", self.task.run_file(journal_dir=self.task.path("disk"), save_interval=0), ["--max-steps", "100000"])
        run.wait_step(2)
        link, copy = os.path.join(run.dir, "journal.db"), os.path.join(run.dir, "journal.snapshot")
        end = time.monotonic() + LIMIT
        while not os.path.exists(copy):    # of its start; the next one comes with a checkpoint
            self.assertLess(time.monotonic(), end, run.logs())
            time.sleep(0.01)
        os.symlink(self.task.path("elsewhere/journal.db"), link + ".new")
        os.rename(link + ".new", link)
        before = os.stat(copy).st_ino
        run.ctl("checkpoint")
        self.assertEqual(run.process.wait(LIMIT), 1)
        self.assertIn("another machine has taken the run over", written(run.errors) + written(run.log))
        self.assertEqual(os.stat(copy).st_ino, before)

    @staticmethod
    def held_in(path):
        """What a file holds, or the names in a folder."""
        if os.path.isdir(path):
            return sorted(os.listdir(path))
        with open(path, "rb") as f:
            return f.read()

    def test_a_run_writes_through_no_link_that_somebody_has_put_into_its_folder(self):
        run = self.start("linked", self.task.run_file(), ["--max-steps", "1"])
        self.finish(run, 1)
        for name in ("rollouts/groups.zst", "rollouts/log.jsonl", "logs/agent.log", "logs/keeper.log", "lock", "sock"):
            own, away = os.path.join(run.dir, name), self.task.path("away")
            os.rename(own, away)
            os.symlink(away, own)
            before = self.held_in(away)
            again = subprocess.run([ROLLCALL, "train", "--resume", run.dir, "--max-steps", "2", "--batch"], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(again.returncode, 1, name)
            self.assertIn(f"'{own}' is a link", again.stderr.splitlines()[-1])
            self.assertEqual(self.held_in(away), before, name)
            os.unlink(own)
            os.rename(away, own)
        self.finish(self.start("linked", resume=True, extra=["--max-steps", "2"]), 2)

    def test_a_tokenizer_of_its_own_is_used_saved_and_watched(self):
        own = self.task.path("tokenizer")
        os.mkdir(own)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.move(os.path.join(self.task.path("model"), name), own)
        plain = subprocess.run([ROLLCALL, "train", self.task.run_file("plain.yaml", max_steps=2), "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(plain.returncode, 1)
        self.assertIn("tokenizer", plain.stderr)
        run = self.start("own", self.task.run_file(save_interval=1), ["--max-steps", "2", "--tokenizer-path", own])
        self.finish(run, 2)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(own, name), "rb") as a, open(os.path.join(run.dir, "checkpoints/step-000002", name), "rb") as b:
                self.assertEqual(a.read(), b.read())
        with open(os.path.join(own, "tokenizer.json"), "a") as f:
            f.write("\n")
        again = subprocess.run([ROLLCALL, "train", "--resume", run.dir, "--max-steps", "3", "--batch"], capture_output=True, text=True, timeout=LIMIT)
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("tokenizer", again.stderr)

    def test_a_producer_waits_for_scores_as_long_as_it_is_told_to(self):
        run = self.start("silent", self.task.run_file(reward_type=self.task.later_reward("silent-asked", "exec sleep 1000"), score_timeout_s=0.2, waste_limit=32), ["--max-steps", "1"])
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (1, "failed"), run.logs())
        self.assertIn("has not answered in time", last["reason"])

    def test_a_save_that_was_due_when_the_controller_died_is_made_by_the_next_one(self):
        holds = Holds(self.task.path("holds"))
        holds.arm("controller", "answering")
        run = self.start("due", self.task.run_file(save_interval=4, num_episodes=3, save_at_episode_end=True), ["--max-steps", "10"], env=dict(os.environ, RC_TEST_HOLD=holds.dir))
        due = [4, 8]    # every 4 steps; step 8 also ends the episode of 64 prompts
        end = time.monotonic() + LIMIT
        while due:
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            pid = holds.held("controller", "answering")
            if pid is None:
                time.sleep(0.002)
                continue
            holds.arm("controller", "answering")    # for the next time
            if run.step() >= due[0]:    # the step is in the journal, and nobody has been told to save it
                self.assertEqual(run.journal_number(f"select count(*) from checkpoint where step = {due.pop(0)}"), 0)
                os.kill(pid, signal.SIGKILL)
            holds.release("controller", "answering", pid)
        holds.disarm("controller", "answering")
        self.finish(run, 10)
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
            rows = db.execute("select step, state from checkpoint order by step").fetchall()
        self.assertEqual(rows, [(4, "complete"), (8, "complete"), (10, "complete")])

    def test_the_same_one_rollout_step_behind_with_a_filter_and_two_steps_a_rollout(self):
        self.compare(n_behind=1, train_batch_size=4, train_minibatch_size=4, filter_range=[0.1, 0.9], algo="DAPO")

    def test_ten_steps_and_then_ten_more_are_twenty(self):
        file = self.task.run_file()
        self.finish(self.start("whole", file, ["--max-steps", "20"]), 20)
        self.finish(self.start("parts", file, ["--max-steps", "10"]), 10)
        self.finish(self.start("parts", resume=True, extra=["--max-steps", "20"]), 20)
        self.assertEqual(self.runs[0].weights(20), self.runs[2].weights(20))

    def test_a_setting_given_at_resume_is_a_change_from_there_on_and_the_last_word_holds(self):
        def sql(query):
            with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
                return [row[0] for row in db.execute(query)]

        def rates(run):
            return {line["step"]: line["metrics"]["train/learning_rate"] for line in run.output() if line["event"] == "step"}

        run = self.start("told", self.task.run_file(save_interval=1000, temperature=0.9), ["--max-steps", "100000"])
        run.wait_step(2)
        for change in ("learning_rate=0.002", "temperature=0.8"):
            self.assertEqual(run.ctl("set", change).returncode, 0)
        self.assertEqual(run.ctl("stop").returncode, 0)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        step = last["step"]
        told = f"learning_rate: 0.002 -> 0.0005 from optimizer step {step + 1} on"
        given = ["--learning-rate", "0.0005", "--temperature", "0.8", "--max-steps", str(step + 2)]
        again = self.start("told", resume=True, extra=given)
        code, last = again.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", step + 2), again.logs())
        self.assertEqual(rates(again), {step + 1: 0.0005, step + 2: 0.0005})
        events = sql("select text from event where who = 'train --resume'")
        self.assertEqual([told in e and f"max_steps: 100000 -> {step + 2}" in e for e in events], [True], events)
        self.assertNotIn("temperature", events[0])    # it was that already
        kept = json.loads(sql("select value from value where name = 'changes'")[0])
        self.assertEqual([(k["value"], k["step"]) for k in kept if k["name"] == "learning_rate"][-1], ("0.0005", step))
        with open(os.path.join(run.dir, "run.yaml")) as f:    # of a later life it is the first word, not the last
            self.assertIn("learning_rate: 0.0005", f.read())
        last_one = self.start("told", resume=True, extra=["--max-steps", str(step + 4)])
        self.finish(last_one, step + 4)
        self.assertEqual(set(rates(last_one).values()), {0.0005})
        self.assertFalse(os.path.exists(os.path.join(run.dir, "resume")))

    def refused(self, args, *words):
        done = subprocess.run([ROLLCALL, "train", "--batch", *args], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, lines)
        for word in words:
            self.assertIn(word, lines[0])

    def test_a_folder_belongs_to_one_run_and_another_is_refused_with_both_names(self):
        file = self.task.run_file(eval_dataset=json.dumps({"some": self.task.path("train.jsonl")}), eval_at_end=True)
        folders = {name: self.task.path(name) for name in ("save-dir", "eval-save-dir", "rollout-save-dir")}
        given = [word for name, path in folders.items() for word in ("--" + name, path)]
        first = self.start("first", file, ["--max-steps", "4", *given])
        code, last = first.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), first.logs())
        kept = sorted((path, os.stat(path).st_mtime_ns) for path in glob.glob(folders["save-dir"] + "/**", recursive=True))
        other = os.path.join(self.task.path("runs"), "second")
        for name, path in folders.items():
            for more in ([], ["--dry-run"]):
                self.refused([file, "--runs-dir", self.task.path("runs"), "--name", "second", "--" + name, path, *more],
                             path, first.dir, "its own folder")
                self.assertFalse(os.path.exists(other))
        # a run that has begun with folders of its own is not led into them at resume either
        second = self.start("second", file, ["--max-steps", "4"])
        self.assertEqual(second.wait()[0], 0, second.logs())
        for name, path in folders.items():
            self.refused(["--resume", second.dir, "--" + name, path], path, first.dir, second.dir)
        self.assertEqual(kept, sorted((path, os.stat(path).st_mtime_ns) for path in glob.glob(folders["save-dir"] + "/**", recursive=True)))
        # nor does it load, replace or remove what another run has left in its own
        theirs = os.path.join(second.dir, "checkpoints")
        with open(os.path.join(first.dir, "run.id")) as f:
            first_id = f.read().strip()
        for step in (2, 4):
            shutil.rmtree(os.path.join(theirs, f"step-{step:06d}"), ignore_errors=True)
            shutil.copytree(os.path.join(folders["save-dir"], "step-000004"), os.path.join(theirs, f"step-{step:06d}"))
        again = self.start("second", resume=True, extra=["--max-steps", "6", "--keep-checkpoints", "1"])
        code, last = again.wait()
        self.assertEqual((code, last["event"]), (1, "failed"), again.logs())
        self.assertIn("belongs to another run (" + first_id, last["reason"])
        self.assertEqual(len(os.listdir(theirs)), 3, os.listdir(theirs))    # with the folder's mark
        # the first run itself goes on there
        self.finish(self.start("first", resume=True, extra=["--max-steps", "8"]), 8)
        with open(glob.glob(folders["eval-save-dir"] + "/*/some_training_step_*.jsonl")[0]) as f:
            self.assertEqual({json.loads(line)["run"] for line in f}, {first_id})

    def test_the_step_that_a_resumed_run_goes_on_from_is_evaluated_once(self):
        sets = json.dumps({"some": self.task.path("train.jsonl")})
        settings = self.task.run_file(save_interval=2, save_at_end=False, eval_interval=2, eval_at_end=True, eval_dataset=sets)
        run = self.start("once", settings, ["--max-steps", "3"])
        self.finish(run, 3)
        run = self.start("once", resume=True)    # from step 2
        self.finish(run, 3)
        events = run.ctl("events").stdout
        self.assertEqual([events.count(f"at step {step}\n") for step in (0, 2, 3)], [1, 1, 2], events)

    def test_a_run_whose_journal_is_gone_is_refused_before_it_writes_over_what_it_has_saved(self):
        run = self.start("kept", self.task.run_file(), ["--max-steps", "8"])
        self.finish(run, 8)
        journal = os.path.join(run.dir, "journal.db")
        checkpoints = os.path.join(run.dir, "checkpoints")
        with open(journal, "rb") as f:
            whole = f.read()
        files = [path for path in glob.glob(run.dir + "/[cr]*/**", recursive=True) if os.path.isfile(path)]
        self.assertGreater(len(files), 10)
        kept = {path: os.stat(path).st_mtime_ns for path in files}
        for content, why in ((None, "holds no journal"), (b"", "cannot be used"), (b"no database", "cannot be used")):
            os.unlink(journal)
            if content is not None:
                with open(journal, "wb") as f:
                    f.write(content)
            self.refused(["--resume", run.dir, "--max-steps", "12"], why, "checkpoint of step 8", f"--checkpoint-path '{checkpoints}/step-000008'")
            if content is None:
                open(journal, "wb").close()
        # a checkpoint that was written just before a kill, of which only the rows of steps that were undone since know
        with open(journal, "wb") as f:
            f.write(whole)
        with contextlib.closing(sqlite3.connect(journal)) as db, db:
            db.execute("update step set superseded = 1 where step > 3")
            db.execute("insert into incarnation(from_step, wall_s) values (3, 0)")
            db.execute("delete from checkpoint")
        done = subprocess.run([ROLLCALL, "train", "--resume", run.dir, "--max-steps", "12", "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        # a journal that is older than the checkpoints: its log was left behind
        with contextlib.closing(sqlite3.connect(journal)) as db, db:
            db.execute("delete from step where step > 3")
        self.refused(["--resume", run.dir, "--max-steps", "12"], "knows nothing after step 3", "checkpoint of step 8")
        # without checkpoints there are still rollouts
        shutil.move(checkpoints, checkpoints + ".away")
        os.mkdir(checkpoints)
        os.unlink(journal)
        self.refused(["--resume", run.dir, "--max-steps", "12"], "groups.zst' holds rollouts")
        os.rmdir(checkpoints)
        shutil.move(checkpoints + ".away", checkpoints)
        self.assertEqual(kept, {path: os.stat(path).st_mtime_ns for path in files})
        with open(journal, "wb") as f:
            f.write(whole)
        self.finish(self.start("kept", resume=True, extra=["--max-steps", "12"]), 12)    # it is all there again, and trains on
        new = self.start("fresh", self.task.run_file(), ["--max-steps", "2", "--checkpoint-path", checkpoints + "/step-000008"])
        self.finish(new, 2)    # the remedy named
        other = self.task.path("other-model")    # the checkpoint's tensors fit it, but it computes otherwise with them
        shutil.copytree(self.task.path("model"), other)
        with open(os.path.join(other, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(other, "config.json"), "w") as f:
            json.dump({**config, "rope_theta": 123456.0}, f)
        new = self.start("other", self.task.run_file("other.yaml", model=other), ["--max-steps", "2", "--checkpoint-path", checkpoints + "/step-000008"])
        self.assertNotEqual(new.wait()[0], 0)
        self.assertIn("has another 'rope_theta'", new.logs())

    def test_a_run_whose_journal_is_gone_goes_on_from_its_newest_whole_checkpoint_when_told_to(self):
        def state(folder):
            return {path: (os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in glob.glob(folder + "/**", recursive=True)
                    if os.path.isfile(path)}

        def rows(query):
            with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=10)) as db:
                return db.execute(query).fetchall()

        run = self.start("lost", self.task.run_file(), ["--max-steps", "8"])
        self.finish(run, 8)    # so that there is a checkpoint of its end, whatever else was saved
        self.finish(self.start("lost", resume=True, extra=["--max-steps", "12"]), 12)
        journal = os.path.join(run.dir, "journal.db")
        checkpoints = os.path.join(run.dir, "checkpoints")
        flag = ["--resume", run.dir, "--from-checkpoint"]
        self.refused([*flag, "--max-steps", "16"], "omit --from-checkpoint")
        # the newest is broken; the one before it is what there is
        broken = os.path.join(checkpoints, "step-000012")
        with open(os.path.join(broken, "model.safetensors"), "r+b") as f:
            f.truncate(1000)
        kept = {path: of for path, of in state(checkpoints).items() if "step-000012" not in path}
        with open(os.path.join(run.dir, "rollouts/groups.zst"), "rb") as f:
            groups = f.read()
        prompts = [(item, row) for item, row, *_ in run.ledger() if item >= 64]
        self.assertEqual(len(prompts), 32)
        before = max(seq for seq, in rows("select seq from step"))
        os.unlink(journal)
        self.refused(["--resume", run.dir, "--max-steps", "16"], "holds no journal", "--from-checkpoint")
        told = subprocess.run([ROLLCALL, "train", "--batch", *flag, "--dry-run", "--max-steps", "16"], capture_output=True, text=True,
                              timeout=LIMIT)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertFalse(os.path.exists(journal))
        # it is still the data that the run was begun with
        with open(self.task.path("train.jsonl")) as f:
            lines = f.readlines()
        with open(self.task.path("train.jsonl"), "w") as f:
            f.writelines(reversed(lines))
        self.refused([*flag, "--max-steps", "16"], "dataset: not what the run")
        with open(self.task.path("train.jsonl"), "w") as f:
            f.writelines(lines)
        again = self.start("lost", resume=True, extra=["--from-checkpoint", "--max-steps", "16"])
        code, last = again.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 16), again.logs())
        self.assertEqual(again.steps(), list(range(9, 17)))
        for words in ("is rebuilt from '" + checkpoints + "/step-000008'", "lost: metrics of steps 1 to 8", "lost: steps after 8",
                      "lost: setting changes", "prompts continue at item 64", "is skipped and moved aside: " + broken):
            self.assertIn(words, written(again.errors))
        # nothing is written over, and the prompts follow in the order that the run had
        self.assertEqual(kept, {path: of for path, of in state(checkpoints).items() if path in kept})
        self.assertTrue(os.path.isdir(broken + ".broken-1"))
        with open(os.path.join(run.dir, "rollouts/groups.zst"), "rb") as f:
            self.assertTrue(f.read().startswith(groups))
        self.assertEqual(rows("select item, prompt_row from item where item < 96 order by item"), prompts)
        self.assertEqual([item for item, in rows("select item from item order by item")], list(range(64, 128)))
        self.assertGreater(min(seq for seq, in rows("select seq from step where superseded = 0")), before)
        # from then on it resumes as any run does
        code, last = self.start("lost", resume=True, extra=["--max-steps", "18"]).wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 18), run.logs())
        self.assertEqual(run.steps(), list(range(9, 19)))

    def test_the_same_after_one_step_with_prompts_sampled_ahead_and_without_checkpoints_not_at_all(self):
        run = self.start("early", self.task.run_file(save_interval=1, n_behind=1), ["--max-steps", "1"])
        self.finish(run, 1)
        journal = os.path.join(run.dir, "journal.db")
        checkpoint = os.path.join(run.dir, "checkpoints/step-000001")
        for path in glob.glob(journal + "-*"):    # a log that was not folded yet would be as good as the whole
            os.unlink(path)
        with open(journal, "wb") as f:
            f.write(b"no database")
        os.rename(checkpoint, checkpoint + ".away")
        self.refused(["--resume", run.dir, "--from-checkpoint", "--max-steps", "4"], "no complete checkpoint")
        with open(journal, "rb") as f:
            self.assertEqual(f.read(), b"no database")
        os.rename(checkpoint + ".away", checkpoint)
        again = self.start("early", resume=True, extra=["--from-checkpoint", "--max-steps", "4"])
        code, last = again.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 4), again.logs())
        with open(journal + ".lost-1", "rb") as f:
            self.assertEqual(f.read(), b"no database")

    def test_what_was_exchanged_under_a_run_is_named_and_refused_unless_it_is_accepted(self):
        def edit(file, change):
            path = self.task.path(file)
            with open(path) as f:
                text = f.read()
            with open(path, "w") as f:
                f.write(change(text))

            def back():
                with open(path, "w") as f:
                    f.write(text)

            return back

        def template(text):
            config = json.loads(text)
            config["chat_template"] = (config.get("chat_template") or "{{ messages[0].content }}") + " "
            return json.dumps(config)

        self.task.run_file()
        with open(self.task.path("train.jsonl")) as f, open(self.task.path("few.jsonl"), "w") as few:
            few.writelines(f.readlines()[:4])
        sets = json.dumps({"some": self.task.path("few.jsonl")})
        run = self.start("same", self.task.run_file(eval_dataset=sets), ["--max-steps", "4"])
        self.finish(run, 4)
        cases = (("train.jsonl", lambda text: "".join(reversed(text.splitlines(True))), "dataset"),
                 ("train.jsonl", lambda text: text.replace('"gt_answer": "1', '"gt_answer": "2'), "dataset"),
                 ("few.jsonl", lambda text: text.replace("messages", "messages ", 0) + "\n", "eval_dataset some"),
                 ("model/tokenizer_config.json", template, "chat_template"),
                 ("model/tokenizer.json", lambda text: text + " ", "tokenizer"),
                 ("model/config.json", lambda text: text + " ", "model"))
        for file, change, part in cases:
            back = edit(file, change)
            self.refused(["--resume", run.dir, "--max-steps", "8"], part + ": not what the run", f"--accept-changed '{part}'")
            self.refused(["--resume", run.dir, "--max-steps", "8", "--accept-changed", "nothing"], part)
            back()
        edit(*cases[1][:2])
        again = self.start("same", resume=True, extra=["--max-steps", "8", "--accept-changed", "dataset"])
        self.finish(again, 8)
        self.assertIn("not what the run was begun with, on purpose: dataset", again.ctl("events").stdout)
        self.finish(self.start("same", resume=True, extra=["--max-steps", "10"]), 10)    # from now on that is what it is made of

    def test_what_only_a_start_can_change_is_journaled_and_an_edited_run_file_is_asked_about(self):
        def told(run):
            return [line for line in run.ctl("events").stdout.splitlines() if "(was " in line]

        def edit(run, old, new):
            path = os.path.join(run.dir, "run.yaml")
            with open(path) as f:
                text = f.read()
            self.assertIn(old, text)
            with open(path, "w") as f:
                f.write(text.replace(old, new))

        run = self.start("start", self.task.run_file(), ["--max-steps", "2"])
        self.finish(run, 2)
        self.assertEqual(told(run), [])
        again = ["--max-steps", "3", "--seed", "9", "--shuffle", "false", "--learning-rate", "2e-3"]
        run = self.start("start", resume=True, extra=again)
        self.finish(run, 3)
        self.assertEqual(len(told(run)), 1)
        self.assertIn("seed is '9' (was '1')", told(run)[0])
        self.assertIn("shuffle is 'false' (was 'true')", told(run)[0])
        self.assertNotIn("learning_rate", told(run)[0])    # which is a change like any other, with an event of its own
        run = self.start("start", resume=True, extra=[*again, "--max-steps", "4"])
        self.finish(run, 4)
        self.assertEqual(len(told(run)), 1, "told twice")
        edit(run, "seed: 9\n", "seed: 8\n")
        self.refused(["--resume", run.dir, "--max-steps", "5"], "run.yaml' is not what the run has written: seed is '8' (was '9')", "(--seed ...)",
                     "--accept-changed 'run.yaml'")
        edit(run, "learning_rate: 0.002\n", "learning_rate: 0.006\n")
        self.refused(["--resume", run.dir, "--max-steps", "5", "--seed", "8"], "learning_rate is '0.006' (was '0.002')")
        run = self.start("start", resume=True, extra=["--max-steps", "5", "--accept-changed", "run.yaml"])
        self.finish(run, 5)
        self.assertIn("seed is '8' (was '9')", told(run)[1])
        self.assertTrue(any("learning_rate" in line and "0.006" in line for line in run.ctl("events").stdout.splitlines()))
        self.finish(self.start("start", resume=True, extra=["--max-steps", "6"]), 6)    # and now it is the run's own
        self.assertEqual(len(told(run)), 2)

    def test_a_run_file_edited_while_the_run_goes_on_ends_it_when_its_controller_starts_again(self):
        run = self.start("edited", self.task.run_file(), ["--max-steps", "100000"])
        run.wait_step(2)
        path = os.path.join(run.dir, "run.yaml")
        with open(path) as f:
            text = f.read()
        with open(path + ".new", "w") as f:
            f.write(text.replace("\nseed: 1\n", "\nseed: 43\n"))
        os.rename(path + ".new", path)
        os.kill(run.processes()["controller"], signal.SIGKILL)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
        self.assertIn("run.yaml has been changed while the run goes on: seed is '43' (was '1')", last["reason"])

    def test_data_exchanged_while_a_run_goes_on_are_noticed_when_a_process_starts_again(self):
        run = self.start("live", self.task.run_file(), ["--max-steps", "100000"])
        run.wait_step(2)
        path = self.task.path("train.jsonl")
        with open(path) as f:
            lines = f.readlines()
        with open(path + ".new", "w") as f:
            f.writelines(reversed(lines))
        os.rename(path + ".new", path)
        os.kill(run.processes()["worker cpu:0"], signal.SIGKILL)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
        self.assertIn("dataset: changed while the run goes on", last["reason"])
        with open(path, "w") as f:
            f.writelines(lines)
        again = self.start("live", resume=True, extra=["--max-steps", str(last["step"] + 2)])
        code, end = again.wait()
        self.assertEqual((code, end["event"]), (0, "finished"), again.logs())


if __name__ == "__main__":
    unittest.main()
