"""tags: limit=600

What a run does on a full disk, on a read-only one, under a wall clock that jumps, with a reward that hangs, and with its newest
checkpoint broken. faults_preload.c makes the faults, so that they need no privileges and come at a known moment."""
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
import unittest
from nodes_test import Node
from run_tools import LIMIT, ROLLCALL, Holds, Run, Task, built, free_port, written

STEPS = 12
FULL = "disk is full|No space left"
PRELOAD = built("faults_preload.so")


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = 0
        with open(cls.task.path("train.jsonl")) as f, open(cls.task.path("few.jsonl"), "w") as few:
            few.writelines(f.readlines()[:4])
        straight = Run(cls.task, "straight", cls.task.run_file(), ["--max-steps", str(STEPS)])
        code, last = straight.wait()
        assert (code, last["step"]) == (0, STEPS), straight.logs()
        cls.want = straight.weights(STEPS), straight.ledger()
        straight.kill()

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def setUp(self):
        type(self).n += 1
        self.name = f"run-{self.n}"
        self.holds = Holds(self.task.path(f"holds-{self.n}"))
        self.flags = self.task.path(f"flags-{self.n}")
        os.mkdir(self.flags)

    def env(self):
        return dict(LD_PRELOAD=PRELOAD, RC_FAULTS=self.flags, RC_FAULTS_UNDER=os.path.join(self.task.path("runs"), self.name),
                    RC_TEST_HOLD=self.holds.dir)

    def flag(self, name, on):
        path = os.path.join(self.flags, name)
        if on:
            open(path, "w").close()
        else:
            os.unlink(path)

    def start(self, **kwargs):
        extra = kwargs.pop("extra", ["--max-steps", str(STEPS)])
        run = Run(self.task, self.name, self.task.run_file(**kwargs), extra, env=self.env())
        self.addCleanup(run.kill)
        return run

    def resume_and_compare(self, *extra):
        run = Run(self.task, self.name, resume=True, extra=extra)
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(self.want, (run.weights(STEPS), run.ledger()))
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        return run

    def wait_held(self, run, process, point):
        end = time.monotonic() + LIMIT
        while not self.holds.held(process, point):
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            time.sleep(0.003)
        return self.holds.held(process, point)

    def disk_fails(self, flag, process, point, words):
        """The disk fails while this process is at this point: the run says so and ends, and continues once the disk works
        again."""
        run = self.start()
        run.wait_step(2)
        self.holds.arm(process, point)
        pid = self.wait_held(run, process, point)
        self.flag(flag, True)
        self.holds.release(process, point, pid)
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (1, "failed"), run.logs())
        self.assertRegex(last["reason"], words, run.logs())
        self.assertIn(run.dir, last["reason"])
        self.assertEqual(run.processes(), {})
        self.flag(flag, False)
        self.resume_and_compare()

    def test_a_disk_that_is_full_while_a_checkpoint_is_written_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("full", "worker cpu:0", "saving", FULL)

    def test_a_disk_that_is_full_while_groups_come_in_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("full", "controller", "answering", FULL)

    def test_a_disk_that_becomes_read_only_ends_the_run_which_can_be_resumed(self):
        self.disk_fails("readonly", "worker cpu:0", "training", "cannot be written to any more.*Read-only file system.*--resume")

    def test_a_process_without_a_first_sign_of_life_is_named_ended_and_started_again(self):
        """Twice in a row, and the run is given up."""
        for n_mute, name in ((1, "once"), (2, "twice")):
            self.holds = Holds(self.task.path(f"holds-{self.name}-{name}"))
            self.holds.arm("worker cpu:0", "starting")
            run = Run(self.task, f"{self.name}-{name}", self.task.run_file(stuck_s=0.2, slow_s=0.1, heartbeat_s=0.03), ["--max-steps", "1"],
                      env=dict(RC_TEST_HOLD=self.holds.dir, RC_TEST_FIRST_SIGN_S="1"))
            self.addCleanup(run.kill)
            pid = self.wait_held(run, "worker cpu:0", "starting")
            if n_mute > 1:
                self.holds.arm("worker cpu:0", "starting")
            code, last = run.wait()
            with sqlite3.connect(os.path.join(run.dir, "journal.db")) as db:
                told = [text for text, in db.execute("select text from event where text like '%has given no sign of life in%'")]
            self.assertEqual(len(told), n_mute, run.logs())
            self.assertIn(f"'worker cpu:0' (pid {pid}) has given no sign of life in 1 s since it was started, and is ended", told)
            self.assertEqual(run.processes(), {})
            if n_mute == 1:
                self.assertEqual((code, last.get("step")), (0, 1), run.logs())
            else:
                self.assertEqual(code, 1)
                self.assertIn("'worker cpu:0' cannot run; it was started again and again: it has given no sign of life", last["reason"])

    def test_a_start_that_is_killed_can_be_made_again_or_resumed(self):
        cut, resumable, extra = 1, False, ["--max-steps", "1"]
        while True:
            run = Run(self.task, self.name, self.task.run_file(), extra, resume=resumable, env=dict(self.env(), RC_FAULTS_CUT=str(cut)))
            self.addCleanup(run.kill)
            code, last = run.wait()
            if code != -signal.SIGKILL:
                break
            resumable = os.path.exists(os.path.join(run.dir, "run.yaml"))
            cut = cut + 1 if os.environ.get("LONG") else 2 * cut
        self.assertEqual((code, last.get("step")), (0, 1), f"{cut}: {run.logs()}")
        self.assertGreater(cut, 10)    # several have been killed

    def test_a_node_that_is_killed_while_it_joins_can_join_again(self):
        port = free_port()
        run = Run(self.task, self.name, self.task.run_file(save_interval=0), ["--max-steps", "100000", "--listen", f"127.0.0.1:{port}"])
        self.addCleanup(run.kill)
        end = time.monotonic() + LIMIT
        while not os.path.exists(os.path.join(run.dir, "sock/join")):
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            time.sleep(0.01)
        cut = 1
        while True:
            dir = self.task.path(f"nodes/{self.name}")
            node = Node(self.task, run, port, folder=self.name, env=dict(LD_PRELOAD=PRELOAD, RC_FAULTS_CUT=str(cut), RC_FAULTS_UNDER=dir))
            self.addCleanup(node.kill)
            while node.process.poll() is None and "agent" not in node.processes():
                self.assertLess(time.monotonic(), end, node.logs())
                time.sleep(0.01)
            if node.process.poll() != -signal.SIGKILL:
                break
            cut += 1 if os.environ.get("LONG") else 5
        self.assertIsNone(node.process.poll(), f"{cut}: {node.logs()}")
        self.assertGreater(cut, 10)    # several have been killed

    def groups_indexed(self, run):
        """The length that the rollout file needs for each group that the journal names."""
        with sqlite3.connect(os.path.join(run.dir, "journal.db")) as db:
            return db.execute("select max(file_offset + file_bytes) from item").fetchone()[0]

    def test_the_journal_names_no_group_that_a_power_cut_could_take(self):
        run = self.start()
        for step in (2, 5):    # killed while something is under way; what had not been synced is gone
            run.wait_step(step)
        run.kill()
        with open(os.path.join(self.flags, "synced")) as f:
            synced = int(f.read())
        self.assertGreater(synced, 0)
        self.assertLessEqual(self.groups_indexed(run), synced)
        os.truncate(os.path.join(run.dir, "rollouts/groups.zst"), synced)
        again = self.resume_and_compare()
        self.assertNotIn("cannot be read again", again.ctl("events").stdout)

    def lost_groups_are_sampled_again(self, spoil):
        run = self.start(n_behind=1, save_interval=3)
        run.wait_step(8)
        run.kill()
        before = self.groups_indexed(run)
        spoil(os.path.join(run.dir, "rollouts/groups.zst"), run)
        again = Run(self.task, self.name, resume=True)
        self.addCleanup(again.kill)
        code, last = again.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), again.logs())
        straight = Run(self.task, self.name + "-straight", self.task.run_file(n_behind=1, save_interval=3), ["--max-steps", str(STEPS)])
        self.addCleanup(straight.kill)
        self.assertEqual(straight.wait()[0], 0)
        self.assertEqual((straight.weights(STEPS), straight.ledger()), (again.weights(STEPS), again.ledger()))
        self.assertRegex(again.ctl("events").stdout, "alert +controller +[0-9]+ groups? cannot be read again")
        self.assertGreater(before, 0)

    def test_a_rollout_file_that_a_power_cut_has_shortened_does_not_stop_a_resume(self):
        def cut(path, run):
            os.truncate(path, os.path.getsize(path) // 4)

        self.lost_groups_are_sampled_again(cut)

    def test_damaged_groups_do_not_stop_a_resume(self):
        def damage(path, run):
            with sqlite3.connect(os.path.join(run.dir, "journal.db")) as db:
                places = db.execute("select file_offset, file_bytes from item where file_bytes > 0 order by item desc limit 12").fetchall()
            with open(path, "r+b") as f:
                for offset, size in places:
                    f.seek(offset + size // 2)
                    byte = f.read(1)[0]
                    f.seek(offset + size // 2)
                    f.write(bytes([byte ^ 0x55]))

        self.lost_groups_are_sampled_again(damage)

    def test_a_read_only_place_for_a_run_is_refused_in_one_sentence(self):
        self.flag("readonly", True)
        run = self.start()
        code, _ = run.wait()
        self.assertEqual(code, 1)
        lines = [line for line in written(run.errors).strip().splitlines() if not line.startswith("note: ")]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("Read-only file system", lines[0])
        self.assertIn(run.dir, lines[0])
        self.assertFalse(os.path.exists(run.dir))

    def test_a_wall_clock_that_jumps_by_days_hurts_no_time_limit(self):
        self.flag("jump", True)
        seen = subprocess.run(["date", "+%s"], env=dict(os.environ, **self.env()), capture_output=True, text=True)
        self.assertGreater(abs(int(seen.stdout) - time.time()), 3600, "the clock does not jump: this test would prove nothing")
        run = self.start(eval_dataset=json.dumps({"some": self.task.path("few.jsonl")}), eval_interval=4)
        self.holds.arm("worker cpu:0", "trained")
        pid = self.wait_held(run, "worker cpu:0", "trained")
        os.kill(pid, signal.SIGSTOP)    # a limit that is due comes, and not before its time
        before = time.monotonic()
        late = run.ctl("checkpoint", "--limit", "2")
        self.assertEqual(late.returncode, 1)
        self.assertIn("has not taken effect in time", late.stderr)
        self.assertGreaterEqual(time.monotonic() - before, 2)
        self.holds.release("worker cpu:0", "trained", pid)
        os.kill(pid, signal.SIGCONT)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(self.want, (run.weights(STEPS), run.ledger()))
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
            self.assertEqual(db.execute("select text from event where kind in ('alert', 'return')").fetchall(), [])
            self.assertEqual([r[0] for r in db.execute("select step from eval")], [0, 4, 8, STEPS])
        with open(os.path.join(run.dir, "logs/agent.log")) as f:
            self.assertNotIn("was killed", f.read())

    def test_a_reward_that_hangs_or_fails_costs_its_samples_and_is_counted(self):
        run = self.start(reward_type=self.task.poor_reward(), reward_timeout_s=1, extra=["--max-steps", "3"], scorer_threads=2)
        run.wait_step(1)
        os.kill(run.processes()["controller"], signal.SIGKILL)    # the next one continues this one's count
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", 3), run.logs())
        print_of = lambda *args: subprocess.run([ROLLCALL, *args, run.dir], capture_output=True, timeout=LIMIT, check=True).stdout.splitlines()
        told = {m["step"]: m["metrics"] for m in map(json.loads, print_of("export", "jsonl"))}
        samples = [json.loads(line) for line in print_of("rollouts")]
        by_step = lambda step: [s for s in samples if s["version"] < step]    # all were sampled with the weights of the step before
        self.assertEqual(sorted(told), [1, 2, 3])
        for step in told:
            late, failed = (sum(s["reason"] == why for s in by_step(step)) for why in ("program: time-out", "program: error: no data"))
            self.assertEqual((told[step]["score/timeouts"], told[step]["score/errors"]), (late, failed), step)
            self.assertEqual((told[step]["rollout/samples_total"], told[step]["rollout/tokens_total"]),
                             (len(by_step(step)), sum(s["n_tok"] for s in by_step(step))))
            self.assertLess(told[step]["metrics/left_out_ratio"], 1)
        self.assertGreater(min(late, failed), 0)
        slow = {s["item"] for s in by_step(1) if s["reason"] == "program: time-out"}    # 4 responses each waited 1 s and more
        self.assertGreaterEqual(told[1]["score/queue"] * told[1]["time/step_s"], 1 * 4 * len(slow))
        self.assertGreaterEqual(told[1]["score/latency_ms"], 1000 * sum(s["reason"] == "program: time-out" for s in by_step(1)) / 32)

    def test_a_newest_checkpoint_that_is_broken_is_named_and_the_one_before_is_used(self):
        for file, damage in (("model.safetensors", "cut"), ("state/trainer.safetensors", "changed"), ("state/manifest.json", "gone")):
            with self.subTest(file=file, damage=damage):
                self.setUp()
                run = self.start(extra=["--max-steps", "9"])
                self.assertEqual(run.wait()[0], 0, run.logs())
                with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
                    newest = db.execute("select max(path) from checkpoint where state = 'complete'").fetchone()[0][-11:]
                path = os.path.join(run.dir, "checkpoints", newest, file)
                if damage == "cut":
                    os.truncate(path, os.path.getsize(path) // 2)
                elif damage == "changed":
                    with open(path, "r+b") as f:
                        f.seek(-5, os.SEEK_END)
                        f.write(b"\x55")
                else:
                    os.unlink(path)
                again = self.resume_and_compare("--max-steps", str(STEPS))
                with sqlite3.connect(f"file:{os.path.join(again.dir, 'journal.db')}?mode=ro", uri=True) as db:
                    alerts = [r[0] for r in db.execute("select text from event where kind = 'alert'")]
                self.assertTrue(any(file in a and f"step {int(newest[5:])} is broken" in a for a in alerts), alerts)

    def test_a_checkpoint_that_memory_is_short_for_is_not_called_broken_and_is_gone_on_from(self):
        run = self.start(extra=["--max-steps", "9"])
        self.assertEqual(run.wait()[0], 0, run.logs())

        def checkpoints():
            with contextlib.closing(sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True)) as db:
                return db.execute("select step, state from checkpoint order by step").fetchall()

        before = checkpoints()
        self.flag("nomemory", True)
        short = Run(self.task, self.name, resume=True, extra=["--max-steps", str(STEPS)], env=self.env())
        self.addCleanup(short.kill)
        code, last = short.wait()
        self.assertEqual((code, last.get("event")), (1, "failed"), short.logs())
        self.assertIn("Cannot allocate memory", last["reason"])
        self.assertIn(run.dir, last["reason"])
        self.assertEqual(checkpoints(), before)
        self.flag("nomemory", False)
        again = self.resume_and_compare("--max-steps", str(STEPS))
        with contextlib.closing(sqlite3.connect(f"file:{os.path.join(again.dir, 'journal.db')}?mode=ro", uri=True)) as db:
            self.assertEqual([text for text, in db.execute("select text from event where kind = 'alert'") if "broken" in text], [])


if __name__ == "__main__":
    unittest.main()
