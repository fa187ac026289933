"""The alarm book of a run: judged by its controller, kept in its journal, and what it does."""
import json
import os
import signal
import sqlite3
import subprocess
import unittest
from run_tools import LIMIT, ROLLCALL, RunCase


class Alarms(RunCase):
    def book(self, text):
        """The next runs' alarms.yaml, next to their run files."""
        path = self.task.path("alarms.yaml")
        with open(path, "w") as f:
            f.write(text)
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))

    def events(self, run, kind="alarm"):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return [(text, json.loads(detail)) for text, detail in
                    db.execute("select text, detail from event where kind = ? order by seq", (kind,))]

    def alarm(self, run, name):
        return next(a for a in self.status(run)["alarms"] if a["name"] == name)

    def test_an_alarm_fires_is_seen_muted_and_survives_the_controller(self):
        told = self.task.path("told.txt")
        self.book(f"""
hot: {{metric: rollout/temperature, above: 1.5, steps: 2, severity: critical, text: "temperature is {{}}", remedy: cool down,
       command: 'echo "$ROLLCALL_ALARM $ROLLCALL_STEP $ROLLCALL_TEXT" >> {told}'}}
truncated: {{on: false}}
""")
        run = self.start()
        run.wait_step(1)
        self.assertEqual(self.alarm(run, "hot")["state"], "quiet")
        self.assertNotIn("truncated", [a["name"] for a in self.status(run)["alarms"]])
        self.ok(run, "set", "temperature=2")
        self.until("it fires", lambda: self.alarm(run, "hot")["state"] == "firing", run)
        self.assertRegex(self.alarm(run, "hot")["text"], r"^temperature is 2, \d+ steps? after temperature 1(.0)? -> 2(.0)?$")
        text, facts = next((t, f) for t, f in self.events(run) if f["alarm"] == "hot")
        self.assertRegex(text, r" steps? after temperature ")
        self.assertEqual((facts["alarm"], facts["state"], facts["severity"], facts["value"]), ("hot", "firing", "critical", 2))
        self.assertRegex(self.ok(run, "status"), r"alarm hot, critical, firing since step \d+: temperature is 2")
        self.until("the command has run", lambda: os.path.exists(told) and os.path.getsize(told) > 0, run)
        with open(told) as f:
            self.assertRegex(f.read(), r"^hot \d+ temperature is 2, ")
        self.ok(run, "ack", "hot")
        os.kill(run.processes()["controller"], signal.SIGKILL)
        self.assertEqual(self.alarm(run, "hot")["state"], "acknowledged")
        step = run.step()
        run.wait_step(step + 3)
        self.assertEqual(len([1 for _, f in self.events(run) if f["alarm"] == "hot" and f["state"] == "firing"]), 1)    # not again
        self.ok(run, "set", "temperature=1")
        self.until("it is over", lambda: self.alarm(run, "hot")["state"] == "quiet", run)
        self.ok(run, "mute", "hot")
        self.ok(run, "set", "temperature=2")
        run.wait_step(run.step() + 6)
        self.assertEqual(self.alarm(run, "hot")["state"], "muted")
        self.ok(run, "unmute", "hot")
        self.until("it is heard again", lambda: self.alarm(run, "hot")["state"] == "firing", run)
        self.assertEqual(run.ctl("ack", "nonsense").returncode, 1)
        self.assertTrue([line for line in run.told("alarm") if line["alarm"] == "hot" and line["state"] == "firing"])    # in jsonl

    def test_alarms_that_a_system_prompt_can_cause_name_the_rewards_own_where_it_is_in_force(self):
        base = dict(reward_type="boxed", max_prompt_tokens=128, waste_alert=0)
        own, none = self.start(system_prompt="", **base), self.start(**base)
        own.wait_step(3)
        none.wait_step(3)
        for name in ("reward_zero", "no_spread"):
            self.until("the alarm fires in both", lambda: all(self.alarm(run, name)["state"] == "firing" for run in (own, none)), own, none)
            said = [self.alarm(run, name)["remedy"].endswith("; prompts have the reward_type's own system prompt: compare with 'rollcall eval "
                                                             "--system-prompt none'") for run in (own, none)]
            self.assertEqual(said, [True, False])
        with open(os.path.join(own.dir, "logs/controller.log")) as f:
            self.assertNotIn("WARN", f.read())
        self.assertIn("note: prompts have the system prompt \"Please reason step by step", own.logs())

    def test_an_alarm_takes_a_ruinous_change_back_by_itself(self):
        self.book("hot: {metric: rollout/temperature, above: 1.5, actions: [checkpoint, rollback]}\n")
        run = self.start()
        self.until("a checkpoint", lambda: run.journal_number("select count(*) from checkpoint where state = 'complete'") > 0, run)
        self.ok(run, "set", "temperature=2")
        self.until("it goes back", lambda: self.status(run)["incarnation"] == 2, run)
        status = self.status(run)
        self.assertEqual(status["knobs"]["temperature"], 1)
        self.assertIn(status["state"], ("running", "starting"))
        back = self.events(run, "return")
        self.assertEqual(len(back), 1)
        run.wait_step(back[0][1]["step"] + 3)
        self.assertEqual(self.alarm(run, "hot")["state"], "quiet")

    def test_an_alarm_pauses_a_run_that_no_change_explains(self):
        self.book("began: {metric: rollout/samples_total, above: 100, actions: [rollback]}\n")
        run = self.start()
        run.wait_step(1)
        self.until("it is paused", lambda: self.status(run)["state"] == "paused", run)
        self.assertEqual(len(self.events(run, "return")), 1)
        paused = "alarm began paused it, after a whole step"    # not an operator: also for who comes later, and after a restart
        self.assertEqual(self.status(run)["reason"], paused)
        os.kill(run.processes()["controller"], signal.SIGKILL)
        self.until("it is paused again", lambda: self.status(run)["state"] == "paused", run)
        self.assertEqual(self.status(run)["reason"], paused)
        self.assertIn("paused: " + paused, self.ok(run, "events"))

    def test_what_bounds_the_run_is_said_in_status_events_and_at_its_end(self):
        self.book("\n".join(f"{name}: {{on: false}}" for name in ("no_spread", "step_slow", "publish_slow", "rollout_slow", "kl_jump", "grad_norm_jump")))
        run = self.start("--max-steps", "60", kl_coeff=0)
        run.wait_step(20)
        doctor = self.status(run).get("doctor")
        if doctor:    # else the run has ended meanwhile
            self.assertIn(doctor["kind"], ("bound", "warn", "crit"))
            self.assertTrue(doctor["text"])
        self.assertEqual(run.wait()[0], 0, run.logs())
        said = self.events(run, "doctor")
        self.assertTrue(said)
        self.assertEqual(said[0][1]["kind"], "bound")
        self.assertIn(" %", run.output()[-1]["doctor"])

    def test_a_book_that_is_wrong_is_refused_before_anything_is_made(self):
        self.book("truncated:\n  above: lots\n")
        done = subprocess.run([ROLLCALL, "train", "--batch", self.task.run_file(), "--runs-dir", self.task.path("runs"), "--name", "wrong"],
                              capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 2)
        self.assertIn("alarms.yaml:2: 'above' of alarm 'truncated' is 'lots'", done.stderr)
        self.assertFalse(os.path.exists(self.task.path("runs/wrong")))

    def test_the_defaults_are_printed_as_a_file_that_is_taken(self):
        text = subprocess.run([ROLLCALL, "settings", "--alarms"], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
        self.book(text)
        run = self.start("--max-steps", "2")
        self.assertEqual(run.wait()[0], 0, run.logs())
        with open(os.path.join(run.dir, "alarms.yaml")) as f:
            self.assertEqual(f.read(), text)


if __name__ == "__main__":
    unittest.main()
