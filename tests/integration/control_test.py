"""tags: asan limit=900

What an operator does to a run with ctl and signals, and what bad input gets."""
import contextlib
import json
import math
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Run, RunCase, written


def cpu_s(pid):
    """Processor seconds of a process."""
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Control(RunCase):
    def test_pause_set_checkpoint_resume_and_stop_take_effect_before_they_are_answered(self):
        run = self.start()
        run.wait_step(2)
        self.ok(run, "pause", "--depth", "step")
        status = self.status(run)
        self.assertEqual(status["state"], "paused")
        names = {p["name"]: p for p in status["processes"]}
        self.assertEqual(set(names), {"keeper", "agent", "controller", "scorer", "worker cpu:0"})
        for p in status["processes"]:
            self.assertIn(p["verdict"], ("ok", "slow", "stuck"))
            for key in ("pid", "phase", "phase_s", "waits_for"):
                self.assertIn(key, p)
        step = run.step()
        self.assertEqual(status["step"], step)
        self.ok(run, "set", "lr=0.002", "temperature=0.9")
        knobs = self.status(run)["knobs"]
        self.assertEqual((knobs["learning_rate"], knobs["temperature"]), (0.002, 0.9))
        self.ok(run, "checkpoint")
        self.assertTrue(os.path.exists(os.path.join(run.dir, f"checkpoints/step-{step:06d}/model.safetensors")))
        self.assertEqual(run.step(), step, "a paused run made a step")
        self.ok(run, "resume")
        run.wait_step(step + 2)
        end = time.monotonic() + LIMIT
        while len(run.told("step")) <= step and time.monotonic() < end:    # the journal is told a moment later
            time.sleep(0.05)
        self.assertEqual(run.told("step")[step]["metrics"]["train/learning_rate"], 0.002)
        self.ok(run, "revert")
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.001)
        code, out, said = run.ctl_on_terminal("n\n", "set", "lr=0.5")
        self.assertEqual((code, out), (1, ""), said)
        self.assertIn("learning_rate goes from 0.001 to 0.5, 500 times as much. Are you sure?", said)
        self.assertIn("not confirmed, so nothing was sent; --yes sends it without asking", said)
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.001)
        code, out, said = run.ctl_on_terminal("y\n", "stop")
        self.assertEqual(code, 0, said)
        self.assertIn("Are you sure?", said)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        self.assertRegex(last["reason"], r"^stopped by .*, ctl on pts/\d+$")
        self.assertEqual(run.processes(), {})
        self.assertTrue(run.weights(last["step"]))
        done = run.ctl("status", "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["state"]), (0, "stopped"))
        done = run.ctl("pause")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not alive", done.stderr)

    def test_the_time_left_follows_the_limits_that_commands_set(self):
        run = self.start("--format", "text", "--interval", "0")

        def left():
            """Seconds, of the last line of progress; infinite before there is one."""
            last = re.findall(r"^ *\d+/\d+ .* ([0-9:]+)\n", written(run.log), re.M)[-1:]
            if not last:
                return math.inf
            seconds = 0
            for part in last[0].split(":"):
                seconds = 60 * seconds + int(part)
            return seconds
        self.until("a line says how long it takes", lambda: left() < math.inf, run)
        self.ok(run, "set", "max_steps=1000000")
        self.until("the steps that are left are counted", lambda: left() > 200, run)    # no step takes less than 0.2 ms
        self.ok(run, "set", "max_hours=0.05")
        self.until("the hours bound it", lambda: left() <= 180, run)

    def test_without_run_the_one_live_run_under_runs_is_meant(self):
        home = self.task.path("home")
        os.makedirs(os.path.join(home, "runs"))

        def ctl(*args):
            return subprocess.run([ROLLCALL, "ctl", *args], cwd=home, capture_output=True, text=True, timeout=LIMIT)

        def start(name):
            done = Run(self.task, os.path.join("../home/runs", name), self.task.run_file(),
                       ["--max-steps", "100000", "--runs-dir", os.path.join(home, "runs"), "--name", name])
            done.dir = os.path.join(os.path.realpath(home), "runs", name)
            self.addCleanup(done.kill)
            done.wait_step(1)
            return done

        none = ctl("status")
        self.assertEqual((none.returncode, none.stdout), (1, ""), none.stderr)
        self.assertEqual(len(none.stderr.strip().splitlines()), 1, none.stderr)
        first = start("first")
        status = ctl("status", "--json")
        self.assertEqual(status.returncode, 0, status.stderr)
        status = json.loads(status.stdout)
        self.assertEqual((status["name"], status["dir"]), ("first", first.dir))
        for key in ("state", "step", "knobs", "processes"):
            self.assertIn(key, status)
        for process in status["processes"]:
            self.assertIsInstance(process["pid"], int)
            self.assertIsInstance(process["phase_s"], (int, float))
            for key in ("name", "phase", "waits_for", "verdict"):
                self.assertIsInstance(process[key], str)
        for name in ("learning_rate", "temperature", "train_batch_size", "heartbeat_s"):
            self.assertIn(name, status["knobs"])
        self.assertEqual(ctl("--run", "runs/first", "pause", "--depth", "rollouts").returncode, 0)
        self.assertEqual(json.loads(ctl("status", "--json").stdout)["pause_depth"], "rollouts")
        second = start("second")
        for args in (["status"], ["pause"], ["set", "lr=0.1"]):
            both = ctl(*args)
            self.assertEqual((both.returncode, both.stdout), (2, ""), both.stderr)    # which one is the question
            self.assertIn("first", both.stderr)
            self.assertIn("second", both.stderr)
        self.assertEqual(ctl("--run", "runs/first", "resume").returncode, 0)
        sizes = ctl("--run", "runs/first", "set", "beta=0", "lr=0.002", "train_batch_size=4")
        self.assertEqual(sizes.returncode, 0, sizes.stderr)
        first.wait_step(first.step() + 3)
        self.assertEqual(ctl("--run", "runs/first", "stop").returncode, 0)
        self.assertEqual(first.wait()[0], 3)
        only = ctl("status")
        self.assertEqual(only.returncode, 0, only.stderr)
        self.assertIn("run second: running", only.stdout)
        nowhere = ctl("--run", "runs/third", "status")
        self.assertEqual(nowhere.returncode, 1, nowhere.stderr)
        self.assertIn("third", nowhere.stderr)
        self.assertEqual(ctl("--nonsense").returncode, 2)
        second.kill()
        dead = ctl("--run", "runs/second", "status", "--json")
        self.assertEqual((dead.returncode, json.loads(dead.stdout)["state"]), (0, "dead"))

    def test_what_cannot_be_is_refused_with_a_reason_and_changes_nothing(self):
        run = self.start()
        run.wait_step(1)
        for args, code, words in ((["set", "learning_rate=7"], 2, "learning_rate"), (["set", "nonsense=1"], 2, "unknown"),
                                  (["set", "seed=2"], 1, "fixed"), (["set", "learning_rate"], 2, "NAME=VALUE"),
                                  (["pause", "--depth", "deep"], 2, "depth"), (["dance"], 2, "did you mean"), ([], 2, "is needed"),
                                  (["restart", "nobody"], 1, "nobody")):
            done = run.ctl(*args)
            self.assertEqual(done.returncode, code, f"{args}: {done.stderr}")
            self.assertIn(words, done.stderr)
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], 0.001)
        for words in ("pause [DEPTH]", "lock [HOW]", "set NAME=VALUE...", "drop ITEM", "resume"):
            self.assertIn(f"\n  {words:22} ", run.ctl("--help").stdout)

    def test_a_signal_saves_and_stops_and_a_resumed_run_goes_on(self):
        run = self.start()
        run.wait_step(3)
        run.process.send_signal(signal.SIGINT)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        self.assertEqual(last["reason"], "stopped by Ctrl-C in train --batch (SIGINT)")
        step = last["step"]
        self.assertTrue(run.weights(step))
        again = Run(self.task, os.path.basename(run.dir), resume=True, extra=["--max-steps", str(step + 2)])
        self.addCleanup(again.kill)
        code, last = again.wait()
        self.assertEqual((code, last["event"], last["step"]), (0, "finished", step + 2), again.logs())

    def test_a_stopped_worker_is_named_and_comes_back(self):
        run = self.start()
        run.wait_step(1)
        pid = run.processes()["worker cpu:0"]
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + 60
        verdict = "ok"
        while verdict != "stuck" and time.monotonic() < end:    # it may be called slow first
            worker = [p for p in self.status(run)["processes"] if p["name"] == "worker cpu:0"][0]
            verdict = worker["verdict"]
        self.assertEqual(verdict, "stuck")
        self.assertIn("no sign of life", worker["waits_for"])
        agent = run.processes()["agent"]
        before = cpu_s(agent)
        late = run.ctl("checkpoint", "--limit", "2")
        self.assertEqual(late.returncode, 1)
        self.assertIn("'worker cpu:0' has given no sign of life", late.stderr)
        self.assertIn("not taken effect in time", late.stderr)    # the refusal itself, and not the last of many
        self.assertLess(cpu_s(agent) - before, 1, "the agent has been busy with one refusal")
        self.ok(run, "restart", "worker cpu:0")
        self.assertNotEqual(run.processes()["worker cpu:0"], pid)
        run.wait_step(run.step() + 2)

    def test_a_reader_that_keeps_the_journal_s_log_from_being_folded_is_named_and_it_is_cut_afterwards(self):
        def files():
            return [os.path.getsize(os.path.join(run.dir, name)) for name in ("journal.db", "journal.db-wal")]

        def until(condition, what):
            end = time.monotonic() + LIMIT
            while not condition():
                self.assertTrue(time.monotonic() < end and run.process.poll() is None, what + run.logs())
                time.sleep(0.05)

        run = self.start(save_interval=0, max_new_tokens=2)
        run.wait_step(2)
        with contextlib.closing(sqlite3.connect(os.path.join(run.dir, "journal.db"))) as db:
            db.execute("begin")
            db.execute("select count(*) from step").fetchall()
            until(lambda: "cannot be folded" in self.ok(run, "events"), "no alert")
            alert = [line for line in self.ok(run, "events").splitlines() if "cannot be folded" in line][0]
            self.assertIn(f"process {os.getpid()} (", alert)
            found = subprocess.run([ROLLCALL, "doctor", run.dir], capture_output=True, text=True, timeout=LIMIT).stdout
            self.assertRegex(found, f"note +journal's log: [0-9.]+ MiB, read by process {os.getpid()} ")
            self.assertGreater(files()[1], 32 << 20)
        until(lambda: files()[1] < 17 << 20, "the log is not cut")
        self.assertGreater(files()[0], 1 << 18)    # what was written is in the file
        found = subprocess.run([ROLLCALL, "doctor", run.dir], capture_output=True, text=True, timeout=LIMIT).stdout
        self.assertRegex(found, "ok +journal's log: ")

    def test_bad_input_gets_one_sentence_and_leaves_nothing_behind(self):
        good = self.task.run_file()
        broken = self.task.path("broken.jsonl")
        with open(broken, "w") as f:
            f.write('{"messages": [{"role": "user", "content": "1+1"}], "gt_answer": "2"}\n{"messages": \n')
        lacking = self.task.path("lacking.jsonl")
        with open(lacking, "w") as f:
            f.write('{"text": "1+1"}\n')
        for extra, code, words in ((["--dataset", broken], 1, "broken.jsonl:2"), (["--dataset", lacking], 1, "lacking.jsonl:1"),
                                   (["--dataset", "/nowhere.jsonl"], 1, "/nowhere.jsonl"), (["--train-batch-size", "0"], 2, "train_batch_size"),
                                   (["--reward-type", "praise"], 2, "praise"), (["--model", "/nowhere"], 1, "/nowhere"),
                                   (["--nonsense", "1"], 2, "nonsense"), (["--format", "xml"], 2, "xml")):
            runs = self.task.path("never")
            done = subprocess.run([ROLLCALL, "train", good, "--batch", "--runs-dir", runs, *extra], capture_output=True, text=True,
                                  timeout=LIMIT)
            self.assertEqual(done.returncode, code, f"{extra}: {done.stderr}")
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertEqual(done.stdout, "")
            self.assertFalse(os.path.exists(runs))
        done = subprocess.run([ROLLCALL, "train", good, "--dry-run", "--runs-dir", runs], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("on-policy", done.stdout)
        self.assertFalse(os.path.exists(runs))

    def test_a_run_is_not_started_twice_and_a_name_not_taken_twice(self):
        run = self.start()
        run.wait_step(1)
        before = run.processes()
        again = Run(self.task, os.path.basename(run.dir), resume=True, extra=["--learning-rate", "3e-5"])
        self.addCleanup(again.kill)
        self.until("it attaches to the run", lambda: "is already going" in again.logs(), again)
        self.assertEqual(run.processes(), before)
        set_by = sqlite3.connect(os.path.join(run.dir, "journal.db"))
        self.addCleanup(set_by.close)
        self.assertEqual(set_by.execute("select who from event where kind = 'command' and text like '%learning_rate%3e-05%'").fetchall(), [("train --resume",)])
        other = subprocess.run([ROLLCALL, "train", "--batch", "--resume", run.dir, "--seed", "77"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(other.returncode, 1, other.stderr)
        self.assertIn("'seed'", other.stderr)
        self.assertEqual(run.ctl("stop").returncode, 0)
        for one in (run, again):
            code, last = one.wait()
            self.assertEqual((code, last.get("event")), (3, "stopped"), one.logs())
        same = subprocess.run([ROLLCALL, "train", self.task.run_file(), "--batch", "--runs-dir", self.task.path("runs"), "--name",
                               os.path.basename(run.dir)], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(same.returncode, 1, same.stderr)
        self.assertIn("exists", same.stderr)

    def test_a_paused_run_sleeps_between_heartbeats(self):
        run = self.start(heartbeat_s=2)
        run.wait_step(1)
        self.assertEqual(run.ctl("pause").returncode, 0)

        def switches(pid):
            with open(f"/proc/{pid}/status") as f:
                return next(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))
        # 12 a second: what heartbeats, their answers and looks at the listeners ask for, twice over; a loop that polls has 20 or more.
        pids, seconds = {n: p for n, p in run.processes().items() if n != "keeper"}, 3
        self.assertEqual(set(pids), {"agent", "controller", "scorer", "worker cpu:0"})
        before, began = {name: switches(pid) for name, pid in pids.items()}, time.monotonic()
        time.sleep(seconds)    # what is measured is a span of time
        passed = time.monotonic() - began
        woken = {name: (switches(pid) - before[name]) / passed for name, pid in pids.items()}
        self.assertEqual({name: n for name, n in woken.items() if n > 12}, {})
        self.assertEqual(run.ctl("resume").returncode, 0)
        run.wait_step(run.step() + 1)

    def test_an_exporter_whose_port_is_taken_is_not_ok(self):
        def exporter():
            return [p for p in self.status(run)["processes"] if p["name"] == "export openmetrics"][0]

        def take():
            with contextlib.suppress(OSError):
                taken = socket.create_server(address)
                self.addCleanup(taken.close)
                return True
            return False

        with socket.create_server(("127.0.0.1", 0)) as free:
            address = free.getsockname()
        run = self.start("--metrics-listen", f"127.0.0.1:{address[1]}")
        run.wait_step(1)
        agent, pid = run.processes()["agent"], exporter()["pid"]
        os.kill(agent, signal.SIGSTOP)    # so that it starts the exporter again only when the port is taken
        try:
            os.kill(pid, signal.SIGKILL)
            self.until("the exporter's port is taken", take, run)
        finally:
            os.kill(agent, signal.SIGCONT)
        self.until("it has failed", lambda: exporter()["phase"] == "failed", run)
        self.assertEqual(exporter()["verdict"], "stuck")
        self.assertIn("see its log", exporter()["waits_for"])

    def test_a_stopped_keeper_or_agent_is_named_at_once(self):
        run = self.start()
        run.wait_step(1)
        def restarts(name):
            answer = run.ctl("status", "--json")
            rows = json.loads(answer.stdout)["processes"] if answer.returncode == 0 else []
            return [p.get("restarts") for p in rows if p["name"] == name] or [None]

        os.kill(run.processes()["scorer"], signal.SIGKILL)
        self.until("the scorer is started again", lambda: restarts("scorer") == [1], run)
        pids = run.processes()
        self.addCleanup(lambda: [os.kill(pid, signal.SIGCONT) for pid in run.processes().values()])
        os.kill(pids["agent"], signal.SIGSTOP)
        began = time.monotonic()
        done = run.ctl("status")
        self.assertIn(f"agent (pid {pids['agent']}) is stopped", done.stderr)
        os.kill(pids["keeper"], signal.SIGSTOP)
        os.kill(pids["agent"], signal.SIGKILL)
        self.until("the agent has ended", lambda: "agent" not in run.processes(), run)
        done = run.ctl("status")
        self.assertIn(f"keeper (pid {pids['keeper']})", done.stderr)
        self.assertIn("kill -CONT", done.stderr)
        self.assertLess(time.monotonic() - began, 8, "it has waited for an answer that nobody can give")
        os.kill(pids["scorer"], signal.SIGKILL)    # and nobody sees it
        os.kill(pids["keeper"], signal.SIGCONT)
        # the next agent knows what the one before has counted, and what happened in between
        self.until("the counts are as they were", lambda: restarts("agent") == [1] and restarts("scorer") == [2], run)
        self.assertEqual(restarts("keeper"), [0])
        self.until("the journal has it", lambda: f"'agent' (pid {pids['agent']}) has ended after" in self.ok(run, "events"), run)
        self.assertIn(f"'scorer' (pid {pids['scorer']}) has ended while no agent watched it", self.ok(run, "events"))

    def test_a_resume_needs_no_second_try_whatever_is_left_of_the_run(self):
        def resume(*extra):
            again = Run(self.task, os.path.basename(run.dir), resume=True, extra=extra)
            self.addCleanup(again.kill)
            return again

        def kill_but(*kept):
            while left := {name: pid for name, pid in run.processes().items() if name not in kept}:
                for pid in left.values():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

        run = self.start()
        run.wait_step(1)
        scorer = run.processes()["scorer"]
        run.process.kill()
        run.process.wait()
        kill_but("scorer")    # without an agent it would end by itself after 10 s
        again = resume()
        self.until("the scorer is waited for", lambda: f"'scorer' (pid {scorer})" in again.logs(), again)
        os.kill(scorer, signal.SIGKILL)
        step = run.step()
        again.wait_step(step + 1)
        again.process.kill()    # the process that watches it, not the run
        again.process.wait()
        os.kill(run.processes()["agent"], signal.SIGKILL)    # the keeper starts it again
        again = resume()
        self.until("it attaches to the run", lambda: "is already going" in again.logs(), again)
        self.ok(run, "stop")
        stopped = run.step()
        last_one = resume("--max-steps", str(stopped + 1))    # its processes are still shutting down
        code, last = last_one.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", stopped + 1), last_one.logs())
        self.assertIn(again.wait()[1].get("event"), ("stopped", "finished"), again.logs())    # the next start may come before it looks


if __name__ == "__main__":
    unittest.main()
