"""The console on a real run: as lines, and on a real terminal, where it steers the run.

tags: limit=400
"""
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, Run, RunCase, free_port

DRIVER = os.path.join(ROOT, "build", "release", "tests", "tui_screenshot")    # drives a terminal: waits for texts, presses keys


class Console(RunCase):
    def watch(self, run, *args):
        p = subprocess.Popen([ROLLCALL, "console", "--batch", *args, run.dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.wait(), p.stdout.close(), p.stderr.close()))
        return p

    def screen(self, run, *steps, size="100x30", options=()):
        if not os.path.exists(DRIVER):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        out = self.task.path(f"screen-{time.monotonic_ns()}.svg")
        done = subprocess.run([DRIVER, out, size, "dark", *steps, "--", ROLLCALL, "console", *options, run.dir],
                              capture_output=True, text=True, timeout=LIMIT + 100)
        self.assertEqual(done.returncode, 0, done.stderr + run.logs())

    def test_lines_show_every_step_once_from_the_first_on_and_the_end(self):
        run = self.start()
        run.wait_step(8)    # a console that starts late shows the earlier steps
        console = self.watch(run, "--format", "jsonl", "--from", "0")
        first = json.loads(console.stdout.readline())
        self.assertEqual((first["event"], first["step"]), ("step", 1))
        run.wait_step(12)
        self.assertEqual(run.ctl("stop").returncode, 0)
        out = console.stdout.read()    # not communicate: readline has read ahead
        self.assertEqual(console.wait(LIMIT), 3, console.stderr.read())
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(lines[-1]["event"], "stopped")
        self.assertEqual({line["event"] for line in lines[:-1]} - {"step", "doctor", "alarm"}, {"state", "checkpoint", "command"})
        self.assertIn("stopping", [line.get("state") for line in lines])
        steps = [line for line in lines if line["event"] == "step"]
        self.assertEqual([1] + [line["step"] for line in steps], run.steps())
        self.assertEqual(lines[-1]["step"], run.steps()[-1])
        told = {line["step"]: line["metrics"] for line in run.told("step")}
        for line in steps:    # as train itself printed it (the console keeps single precision)
            if line["step"] in told:
                want, got = told[line["step"]]["metrics/reward"], line["metrics"]["metrics/reward"]
                self.assertAlmostEqual(got, want, delta=1e-6 * max(abs(want), 1))

    def test_a_simulated_fleet_is_paused_when_all_its_agents_have_said_so(self):
        fleet = self.task.path("fleet")
        p = subprocess.Popen([ROLLCALL, "simulate", "--agents", "150", "--gpus", "2", "--run", fleet], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.poll() is None and p.terminate(), p.wait(), p.stdout.close()))
        self.assertIn("is live", p.stdout.readline())
        for command, says in (("pause", "paused after"), ("resume", "running after")):
            done = subprocess.run([ROLLCALL, "ctl", "--run", fleet, command], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(says, done.stdout)
            self.assertIn("150 agents have acknowledged it", done.stdout)
        for how in ((), ("--read-only",)):
            done = subprocess.run([ROLLCALL, "console", "--batch", "--once", *how, fleet], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("fleet left after step", done.stdout)

    def test_a_simulated_run_leaves_the_folder_of_another_as_it_is(self):
        folder = self.task.path("other")
        os.mkdir(folder)
        settings = os.path.join(folder, "run.yaml")
        with open(settings, "w") as f:
            f.write("model: mine\n")
        command = [ROLLCALL, "simulate", "--agents", "1", "--run", folder]
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.poll() is None and p.terminate(), p.wait(), p.stdout.close()))
        self.assertIn("is live", p.stdout.readline())
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(folder, done.stderr)    # it is live
        with open(settings) as f:
            self.assertEqual(f.read(), "model: mine\n")

    def test_a_console_of_lines_answers_asks_and_commands(self):
        fleet = self.task.path("plain")
        p = subprocess.Popen([ROLLCALL, "simulate", "--agents", "3", "--run", fleet], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.poll() is None and p.terminate(), p.wait(), p.stdout.close()))
        self.assertIn("is live", p.stdout.readline())
        c = subprocess.Popen([ROLLCALL, "console", "--plain", fleet], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (c.poll() is None and c.kill(), c.wait(), c.stdin.close(), c.stdout.close()))
        limit = threading.Timer(LIMIT, c.kill)    # then nothing more is said
        limit.start()
        self.addCleanup(limit.cancel)

        def types(line, until):
            c.stdin.write(line + "\n")
            c.stdin.flush()
            said = ""
            for told in c.stdout:
                said += told
                self.assertNotIn("\x1b", told)
                if until in told:
                    return said
            self.fail(f"'{until}' does not come after '{line}': {said}")
        self.assertIn("plain is running, step", types("status", "minutes are left"))
        while "node-0003/worker cuda:7: ok" not in types("workers node-0003\nnext", "unknown command 'next'"):
            pass    # its agent has not reported yet
        types("set learning_rate=0.5", "yes or no")
        types("no", "not sent: set learning_rate=0.5")
        types(":pause step", "3 agents have acknowledged it")
        types("stop", "yes or no")
        types("yes", "stop: a simulated run")
        types("nonsense", "'help' lists what can be typed")
        c.stdin.write(":q\n")
        c.stdin.flush()
        self.assertIn("left after step", c.stdout.read())
        self.assertEqual(c.wait(LIMIT), 0)

    def test_random_keys_and_pastes_change_nothing_while_no_question_is_answered(self):
        monkey = os.path.join(ROOT, "build", "release", "tests", "tui_monkey")
        if not os.path.exists(monkey):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        fleet = self.task.path("monkey")
        p = subprocess.Popen([ROLLCALL, "simulate", "--agents", "2", "--gpus", "2", "--steps", "1000000", "--step-seconds", "5", "--run", fleet],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (p.poll() is None and p.terminate(), p.wait(), p.stdout.close()))
        self.assertIn("is live", p.stdout.readline())
        done = subprocess.run([monkey, fleet, "100000" if os.environ.get("LONG") else "1500", "3", ROLLCALL], capture_output=True, text=True,
                              timeout=LIMIT + 900)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)    # tests/tui/monkey.sh presses 100,000

    def test_random_keys_and_pastes_change_nothing_of_a_run_that_trains(self):
        monkey = os.path.join(ROOT, "build", "release", "tests", "tui_monkey")
        if not os.path.exists(monkey):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        run = self.start("--max-steps", "1000000", save_interval=0)
        run.wait_step(2)
        done = subprocess.run([monkey, run.dir, "100000" if os.environ.get("LONG") else "600", "5", ROLLCALL], capture_output=True, text=True,
                              timeout=LIMIT + 900)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run.wait_step(run.step() + 1)    # it has not been held up for good
        for done in ("%issued no more", "%left out of training", "%new rewards%", "%learning_rate%"):
            self.assertEqual(run.journal_number(f"select count(*) from event where text like '{done}'"), 0, done)

    def test_an_interrupted_console_leaves_the_run_alone(self):
        run = self.start()
        run.wait_step(1)
        console = self.watch(run, "--format", "jsonl")
        console.stdout.readline()
        console.send_signal(signal.SIGINT)
        out = console.stdout.read()
        self.assertEqual(console.wait(LIMIT), 3)
        last = json.loads(out.splitlines()[-1])
        self.assertEqual(last["event"], "left")
        self.assertIn("the run continues", last["reason"])
        run.wait_step(run.step() + 2)

    def test_a_reader_that_has_seen_enough_ends_the_console_quietly(self):
        run = self.start()
        run.wait_step(1)
        for form in ("text", "jsonl"):
            console = self.watch(run, "--format", form)
            console.stdout.readline()
            console.stdout.close()    # as head does
            self.assertEqual((console.wait(LIMIT), console.stderr.read()), (0, ""))
        run.wait_step(run.step() + 2)

    def test_changes_checkpoints_and_evaluations_are_printed_as_they_come(self):
        """By both train and a console, with the same fields; a resumed run begins with what is new."""
        sets = json.dumps({"all": {"path": self.task.path("train.jsonl"), "limit": 4}})
        run = self.start("--eval-dataset", sets, save_interval=0)
        run.wait_step(1)
        console = self.watch(run, "--format", "jsonl", "--from", "0")
        console.stdout.readline()    # it has met the run
        self.ok(run, "set", "learning_rate=0.002", "temperature=0.9")
        self.ok(run, "checkpoint")
        self.ok(run, "eval")
        self.ok(run, "stop")
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        by_console = [json.loads(line) for line in console.stdout.read().splitlines()]
        for told in (run.output(), by_console):
            kinds = [line["event"] for line in told]
            knob = told[kinds.index("knob")]
            self.assertEqual([(c["name"], c["before"], c["value"]) for c in knob["changes"]],
                             [("learning_rate", "0.001", "0.002"), ("temperature", "1", "0.9")])
            self.assertRegex(knob["who"], ", ctl$")
            saved = told[kinds.index("checkpoint")]
            self.assertEqual(saved["path"], os.path.join(run.dir, f"checkpoints/step-{saved['step']:06d}"))
            done = told[kinds.index("eval")]
            self.assertEqual((done["set"], done["n"], done["mean"]), ("all", 4, last["eval"]["all"]["mean"]))
            self.assertEqual([line["state"] for line in told if line["event"] == "state"][-1], "stopping")
            self.assertEqual(kinds[-1], "stopped")
        again = Run(self.task, os.path.basename(run.dir), resume=True, extra=["--max-steps", str(last["step"] + 1)])
        self.addCleanup(again.kill)
        code, end = again.wait()
        self.assertEqual((code, end["event"]), (0, "finished"), again.logs())
        self.assertEqual([(line["step"], line["set"]) for line in again.told("eval")], [(end["step"], "all")])
        self.assertEqual({line["changes"][0]["name"] for line in again.told("knob")} - {"max_steps"}, set())
        self.assertEqual([line["step"] for line in again.told("step")], [last["step"] + 1])

    def stopped_console(self, run, *args):
        """A console that is stopped while a run ends, and so misses its last changes."""
        console = self.watch(run, "--format", "jsonl", "--from", "0", *args)
        console.stdout.readline()    # it has met the run
        os.kill(console.pid, signal.SIGSTOP)
        self.ok(run, "set", "learning_rate=0.002")
        run.wait_step(run.step() + 2)
        self.ok(run, "stop")
        return console

    def assert_told_whole(self, run, console, text):
        told = [json.loads(line) for line in text.splitlines()]
        kinds = [line["event"] for line in told]
        self.assertEqual(console.wait(LIMIT), 3, console.stderr.read())
        self.assertEqual([1] + [line["step"] for line in told if line["event"] == "step"], run.steps())
        self.assertEqual((kinds[-1], told[-1]["step"]), ("stopped", run.steps()[-1]))
        self.assertLessEqual({"knob", "checkpoint", "state"}, set(kinds))
        self.assertRegex(told[-1]["reason"], "^stopped by .*, ctl$")

    def test_the_agent_stays_until_onlookers_have_had_their_last_answers(self):
        run = self.start()
        run.wait_step(1)
        console = self.stopped_console(run, "--read-only")
        self.until("the agent waits for it", lambda: "agent: waiting for" in run.logs(whole=True), run)
        os.rename(os.path.join(run.dir, "journal.db"), os.path.join(run.dir, "hidden"))    # so the console cannot read it
        os.kill(console.pid, signal.SIGCONT)
        text = console.stdout.read()
        os.rename(os.path.join(run.dir, "hidden"), os.path.join(run.dir, "journal.db"))
        run.wait()
        self.assertNotIn("are still connected", run.logs(whole=True))
        self.assert_told_whole(run, console, text)

    def test_a_console_reads_what_it_has_missed_when_the_agent_has_gone(self):
        run = self.start()
        run.wait_step(1)
        console = self.stopped_console(run)
        run.kill()
        os.kill(console.pid, signal.SIGCONT)
        self.assert_told_whole(run, console, console.stdout.read())

    def test_a_screen_that_has_missed_the_end_shows_it_with_the_last_step(self):
        if not os.path.exists(DRIVER):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        run = self.start()
        run.wait_step(1)
        svg = self.task.path("missed.svg")
        screen = subprocess.Popen([DRIVER, svg, "100x30", "dark", "keys::set temperature=0.9\\r", "wait:STOPPED", "keys:6",
                                   "wait:learning_rate: 0.001 -> 0.002", "--", ROLLCALL, "console", run.dir],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (screen.poll() is None and screen.kill(), screen.wait(), screen.stderr.close()))
        self.until("the screen has met the run", lambda: "temperature: 1 -> 0.9" in self.ok(run, "events"), run)
        with open(f"/proc/{screen.pid}/task/{screen.pid}/children") as f:
            console = int(f.read())
        os.kill(console, signal.SIGSTOP)
        self.ok(run, "set", "learning_rate=0.002")
        run.wait_step(run.step() + 2)
        self.ok(run, "stop")
        run.kill()
        os.kill(console, signal.SIGCONT)
        _, err = screen.communicate(timeout=LIMIT + 100)
        self.assertEqual(screen.returncode, 0, err)
        with open(svg) as f:
            self.assertIn(f"step{run.steps()[-1]}/", re.sub("<[^>]*>", "", f.read()))    # words are separated by their positions

    def test_the_screen_shows_the_run_and_steers_it(self):
        run = self.start()
        run.wait_step(2)
        self.screen(run, "wait:RUNNING", "wait:reward", "wait:worker cpu:0", "keys:2", "wait:processes and devices",
                    "keys:3", "wait:#1  reward", "keys:5", "wait:state: running",
                    "keys::set temperature=0.9\\r", "wait:temperature: 1 -> 0.9", "keys:ps", "wait:PAUSED (step)",
                    "keys:6", "wait:console", "keys:r", "wait:RUNNING", "keys:S", "wait:Stop the run?", "keys:y", "wait:STOPPED",
                    "keys:2", "wait:all have ended", "gone:controller")
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"))

    def test_a_console_on_another_machine_shows_logs_data_and_devices_too(self):
        port = free_port()
        run = self.start("--listen", f"127.0.0.1:{port}", "--telemetry-s", "1")
        run.wait_step(3)
        if not os.path.exists(DRIVER):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        token = self.task.path("token")
        shutil.copy(os.path.join(run.dir, "sock", "join"), token)
        seen = set(os.listdir(tempfile.gettempdir()))
        done = subprocess.run([DRIVER, self.task.path("far.svg"), "120x36", "dark", "wait:RUNNING", "keys:5", "wait:started 'controller'",
                               "keys:D", "wait:right answer:", "keys:V", "wait:processor time in use", "keys:3", "wait:#1  reward", "keys:q",
                               "--", ROLLCALL, "console", "--connect", f"127.0.0.1:{port}", "--token-file", token],
                              capture_output=True, text=True, timeout=LIMIT + 100)
        self.assertEqual(done.returncode, 0, done.stderr + run.logs())
        self.assertFalse([d for d in set(os.listdir(tempfile.gettempdir())) - seen if d.startswith("rollcall-")])

    def test_a_prompt_is_put_into_quarantine_by_its_key(self):
        run = self.start()
        run.wait_step(2)
        self.ok(run, "pause", "--depth", "step")    # so that the prompt shown stays
        self.screen(run, "wait:PAUSED", "keys:3", "wait:#1  reward", "keys:x", "wait:Quarantine this prompt?", "wait:of the dataset is not issued any more",
                    "keys:n", "keys:x", "wait:Quarantine this prompt?", "keys:y", "wait:quarantine", "wait:is issued no more", "keys:x",
                    "wait:Quarantine this prompt?", "keys:y", "wait:is in quarantine already")
        with contextlib.closing(sqlite3.connect(os.path.join(run.dir, "journal.db"))) as db:
            text, = db.execute("select text from event where who like '%, console%' and text like '%is issued no more'").fetchone()
            line = int(re.search(r"line (\d+) is issued no more", text).group(1))
            issued = [row for row, in db.execute("select prompt_row from item order by item")]
            self.assertIn(line - 1, issued)    # one that the screen can have shown
            before = len(issued)
            self.ok(run, "resume")
            self.until("two rounds of the data", lambda: run.journal_number("select count(*) from item") >= before + 3 * 64, run)
            later = [row for row, in db.execute("select prompt_row from item order by item")][before + 64:]
        self.assertNotIn(line - 1, later)
        self.assertGreater(later.count(line % 64), 0)    # another one is issued still

    def test_a_screen_that_may_only_look_offers_and_does_nothing_else(self):
        run = self.start()
        run.wait_step(1)
        self.screen(run, "wait:RUNNING", "wait:READ-ONLY", "keys:S", "wait:this console is read-only", "keys:4\\r", "wait:this console is read-only", options=["--read-only"])
        self.assertEqual(self.status(run)["state"], "running")

    def test_a_reward_that_hangs_and_one_that_fails_are_alarms(self):
        run = self.start(reward_type=self.task.poor_reward(), reward_timeout_s=1)
        run.wait_step(1)
        self.ok(run, "pause", "--depth", "step")    # what the last step was like stays on the screen
        self.screen(run, "wait:PAUSED", "wait:verifier time-outs,", "wait:verifier errors,", "wait:could not be scored")

    def test_a_stopped_worker_is_named_and_the_death_of_agent_and_controller_survived(self):
        run = self.start()
        run.wait_step(2)
        worker = run.processes()["worker cpu:0"]
        os.kill(worker, signal.SIGSTOP)
        try:
            self.screen(run, "wait:worker cpu:0 stuck", size="80x24")
            self.screen(run, "wait:worker cpu:0 stuck", size="39x5")    # one line is enough to show it
        finally:
            os.kill(worker, signal.SIGCONT)
        for name in ("agent", "controller"):
            if not os.path.exists(DRIVER):
                self.skipTest("libvterm or cmocka was not there when the tests were built")
            pid = run.processes()[name]
            screen = subprocess.Popen([DRIVER, self.task.path(f"{name}.svg"), "100x30", "dark", "wait:RUNNING", "wait:agent", "sleep:2",
                                       "wait:RUNNING", "keys::checkpoint\\r", "wait:is saved", "--", ROLLCALL, "console", run.dir],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            os.kill(pid, signal.SIGKILL)
            _, err = screen.communicate(timeout=LIMIT + 300)
            self.assertEqual(screen.returncode, 0, name + "\n" + err + run.logs())

    def test_a_run_that_is_over_opens_with_all_it_left(self):
        run = self.start("--max-steps", "6")
        self.assertEqual(run.wait()[0], 0)
        run.kill()
        last = run.steps()[-1]
        self.screen(run, "wait:FINISHED", f"wait:step {last}/{last}", "wait:all have ended", "keys:3", "wait:groups",
                    "keys:4a/max_steps\\r", "wait:max_steps", "keys:5", "wait:controller", "keys:6", "wait:finished",
                    "keys::pause\\r", "wait:refused: the run is over; 'rollcall train --resume",
                    # as it was after step 2: nothing of later steps is there; then on, to the end
                    "keys::at 2\\r", "wait: REPLAY ", f"wait:step 2/{last}", "gone:finished", "keys:3", "wait:groups", "keys:.",
                    f"wait:step 3/{last}", "keys:<", f"wait:step 2/{last}", "keys::at end\\r", "wait:FINISHED", "gone:REPLAY", "keys:R",
                    "wait:REPLAY", "wait:FINISHED")
        console = self.watch(run, "--format", "jsonl")
        told = [json.loads(line) for line in console.stdout]
        self.assertEqual([t["step"] for t in told if t["event"] == "step"], list(range(1, last + 1)))
        self.assertEqual((told[-1]["event"], console.wait()), ("finished", 0))
        with contextlib.closing(sqlite3.connect(os.path.join(run.dir, "journal.db"))) as db, db:    # a stranger's words in the journal
            db.execute("update event set text = ?, who = ?", ("\033]0;owned\007\u009b2J\nrun x: FINISHED", "\033[31mme"))
        for args in (["ctl", "--run", run.dir, "events"], ["console", "--batch", run.dir], ["console", "--batch", "--from", "1", run.dir]):
            said = subprocess.run([ROLLCALL, *args], capture_output=True, timeout=LIMIT).stdout.decode()
            self.assertFalse([c for c in said if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"], said)
            self.assertNotIn("\nrun x:", said)

    def test_a_run_whose_processes_were_all_killed_opens_and_says_how_it_goes_on(self):
        run = self.start()
        run.wait_step(2)
        run.kill()
        self.screen(run, "wait:FAILED", "wait:all its processes have ended; 'rollcall train --resume' continues")

    def test_without_a_run_one_is_chosen_from_a_list(self):
        if not os.path.exists(DRIVER):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        runs = self.task.path("picked")
        os.makedirs(runs)
        kept = [self.start("--max-steps", "2"), self.start()]
        self.assertEqual(kept[0].wait()[0], 0)
        kept[1].wait_step(1)
        for run, name in zip(kept, ("first", "second")):
            os.symlink(run.dir, os.path.join(runs, name))
        os.makedirs(os.path.join(runs, "no-run"))

        def pick(*steps, options=()):
            done = subprocess.run([DRIVER, self.task.path("picked.svg"), "100x20", "dark", *steps, "--", ROLLCALL, "console",
                                   "--runs-dir", runs, *options], capture_output=True, text=True, timeout=LIMIT + 100)
            self.assertEqual(done.returncode, 0, done.stderr)

        pick("wait:RUNNING", "wait:Overview")    # the live one
        pick("wait:2, 1 live", "wait:FINISHED", "keys:G\\r", "wait:Overview", "wait:FINISHED", options=["--pick"])
        kept[1].kill()
        pick("wait:2, 0 live", "wait:FAILED", "keys:/first\\r", "wait:/first", "keys:\\r", "wait:Overview", "wait:FINISHED")
        done = subprocess.run([ROLLCALL, "console", "--pick", "--batch", "--runs-dir", runs], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_script_waits_for_what_it_names_and_reads_the_metrics_it_names(self):
        run = self.start()
        run.wait_step(1)
        console = self.watch(run, "--format", "jsonl", "--until", "step=3", "--from", "1", "--fields", "metrics/reward,time/step_s")
        told = [json.loads(line) for line in console.stdout]
        self.assertEqual(console.wait(), 0, console.stderr.read())
        steps = [t for t in told if t["event"] == "step"]
        self.assertEqual([t["step"] for t in steps[:3]], [1, 2, 3])
        for t in steps:
            self.assertLessEqual(set(t["metrics"]), {"metrics/reward", "time/step_s"})
        self.assertEqual((told[-1]["event"], told[-1]["reason"]), ("left", "what was waited for has come; the run goes on"))
        console = self.watch(run, "--once", "--fields", "metrics/reward")
        text = console.stdout.read()
        self.assertEqual(console.wait(), 0, console.stderr.read())
        self.assertRegex(text, r"(?m)^ +step metrics/reward +left$")
        console = self.watch(run, "--until", "checkpoint", "--format", "jsonl")
        console.stdout.readline()
        self.ok(run, "checkpoint")
        self.assertIn('"checkpoint"', console.stdout.read())
        self.assertEqual(console.wait(), 0, console.stderr.read())
        console = self.watch(run, "--until", "alert")
        self.until("the console has met the run", lambda: console.stdout.readline() != "", run)
        self.ok(run, "stop")
        self.assertEqual((console.stdout.read() != "", console.wait()), (True, 1))
        self.assertIn("the run is over, and 'alert' has not come", console.stderr.read())

    def test_what_cannot_be_shown_is_said_in_one_sentence(self):
        for args, want, code in (
            (["--runs-dir", self.task.path("nothing")], "no run is live under", 1),
            ([self.task.path("nothing")], "there is no run directory", 1),
            ([self.task.path("model")], "is not a run: it has no run.yaml", 1),
            ([os.path.dirname(self.task.run_file())], "holds no journal", 1),
            (["--format", "xml"], "text or jsonl", 2),
            (["--until", "doomsday"], "--until does not know 'doomsday'; it is step=N, alarm, alert", 2),
            (["--fields", "metrics/rewards"], "--fields: there is no metric 'metrics/rewards'", 2),
            (["--color", "pink"], "--color does not know 'pink'", 2),
        ):
            done = subprocess.run([ROLLCALL, "console", "--batch", *args], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(want, done.stderr)
            self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1))


if __name__ == "__main__":
    unittest.main()
