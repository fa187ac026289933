"""tags: limit=3600

Any process killed or stopped in any state: the run goes on and ends with the same bytes, and every item is accounted for once.

A cell is (process, state, signal). The state is really reached: the process that makes it is held there (protocol/base/hold.h)
until the signal has been sent. A run takes one cell after the other. LONG=1: all cells with all settings, and random moments."""
import concurrent.futures
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, Run, Task

LONG = bool(os.environ.get("LONG"))
STEPS = 40
CELLS = 40                # of one CI run
CELLS_A_RUN = 5
SETTINGS = [dict(), dict(n_behind=1, train_batch_size=4, train_minibatch_size=4, filter_range=[0.1, 0.9], algo="DAPO"),
            dict(num_inferencer=2, inference_batch_size=4),
            dict(num_inferencer=2, inference_batch_size=4, n_behind=1, train_batch_size=4, train_minibatch_size=4,
                 filter_range=[0.1, 0.9], algo="DAPO"),
            dict(num_trainers=2, num_inferencer=2, inference_batch_size=4, train_batch_size=4, train_minibatch_size=4, n_behind=1)]
SIGNALS = [signal.SIGKILL, signal.SIGSTOP]
# Where a state is made: its process and hold point. A worker's own states are held in the worker that is killed.
STATES = {"starting": None, "generating": ("worker cpu:0", "generating"), "scoring": ("scorer", "scoring"),
          "training": ("worker cpu:0", "training"), "publishing": ("worker cpu:0", "publishing"),
          "saving": ("worker cpu:0", "saving"), "renaming": ("worker cpu:0", "renaming"), "answering": ("controller", "answering"),
          "paused": None, "stopping": ("controller", "stopping")}
OF_EACH_WORKER = ("generating", "publishing")
GATE = ("worker cpu:0", "trained")    # holds a run that the state itself does not hold up


def processes_of(settings):
    workers = [f"worker cpu:{i}" for i in range(settings.get("num_inferencer", 1))]
    return ["console", "keeper", "agent", "controller", "scorer"] + workers


def cells_of(settings):
    """Every (process, state, signal) that a run with these settings can be in."""
    publishes = settings.get("n_behind", 0) > 0 or settings.get("num_inferencer", 1) > 1
    return [c for c in itertools.product(processes_of(settings), STATES, SIGNALS) if c[1] != "publishing" or publishes]


def runs_of(cells, rng):
    """Lists of cells for one run each: shuffled, but pauses first and at most one end, last."""
    cells = list(cells)
    rng.shuffle(cells)
    ends = [c for c in cells if c[1] == "stopping"]
    rest = [c for c in cells if c[1] != "stopping"]
    n = max(len(ends), -(-len(cells) // CELLS_A_RUN))
    return [sorted(rest[i::n], key=lambda c: c[1] != "paused") + ends[i:i + 1] for i in range(n)]


def differs(want, got):
    """None, or what differs from what it must be."""
    if want[0] != got[0]:
        return "other weights"
    items = sorted(set(want[1]) ^ set(got[1]))
    return f"another ledger: {items[:20]}" if items else None


class Observer:
    """A console that watches the run without a screen, restarted whenever it has been killed."""

    def __init__(self, run):
        self.run = run
        self.process = None

    def pid(self):
        if not self.process or self.process.poll() is not None:
            self.process = subprocess.Popen([ROLLCALL, "console", "--run", self.run.dir, "--batch"], stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL)
        return self.process.pid

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()


class Over(AssertionError):
    """The run has ended before what was waited for."""


class Disturbed:
    """A run with holds, and the operations on it."""

    def __init__(self, task, name, settings, steps, gated):
        self.holds = Holds(task.path(f"holds-{name}"))
        self.stopped = []
        self.resuming = None
        if gated:
            self.holds.arm("worker cpu:0", "loading")
        self.run = Run(task, name, task.run_file(**settings, file=f"{name}.yaml"), ["--max-steps", str(steps)],
                       env=dict(RC_TEST_HOLD=self.holds.dir))
        self.observer = Observer(self.run)

    def until(self, what, condition):
        end = time.monotonic() + LIMIT
        while True:
            self.resume()
            value = condition()
            if value:
                return value
            if self.run.process.poll() is not None:
                raise Over(f"the run ended before: {what}\n" + self.run.logs())
            if time.monotonic() > end:
                raise AssertionError(f"not in time: {what}\n" + self.run.logs())
            time.sleep(0.003)

    def pid(self, process):
        """The id of the living process; read twice, since a child that is being started looks like its parent for a moment."""
        if process == "console":
            return self.observer.pid()

        def look():
            pid = self.run.processes().get(process)
            return pid if pid and self.run.processes().get(process) == pid else None
        return self.until(f"'{process}' lives", look)

    def all_live(self):
        """Agent and keeper restart each other: with both dead, nothing restarts the run."""
        self.until("agent and keeper live", lambda: {"agent", "keeper"} <= set(self.run.processes()))

    def holder(self, process, state):
        """The process that reaches the state, and the point."""
        if state == "starting":
            return (process if process != "console" else "controller"), "starting"
        name, point = STATES[state]
        return (process if process.startswith("worker") and state in OF_EACH_WORKER else name), point

    def strike(self, process, sig, held=None):
        """Send the signal; returns the process it went to. A stop lasts until go_on."""
        if sig == signal.SIGKILL and process in ("agent", "keeper"):
            self.all_live()
        while True:
            pid = held or self.pid(process)
            try:
                os.kill(pid, sig)
                break
            except ProcessLookupError:    # killed for the previous cell and only now gone: the restarted process is meant
                if held:
                    raise
        if sig == signal.SIGSTOP:
            self.stopped.append(pid)
        return pid

    def go_on(self):
        if self.stopped:
            time.sleep(0.3)    # how long it stays stopped, not a wait for something
        for pid in self.stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:    # killed meanwhile
                pass
        self.stopped = []

    def begin(self, process, state, _):
        """Make sure that the state is reached. The run is held in another one meanwhile, so it cannot end first."""
        if state == "paused":
            self.pause = subprocess.Popen([ROLLCALL, "ctl", "--run", self.run.dir, "pause"], stdout=subprocess.DEVNULL)
            self.until("pause is known", lambda: os.path.exists(os.path.join(self.run.dir, "sock/orders")))
            return
        holder, point = self.holder(process, state)
        self.holds.arm(holder, "saving" if point == "renaming" else point)
        if state == "starting":
            self.start_again(holder, point)

    def start_again(self, process, point):
        """Let a restarted process reach the armed point: end the old one, unless a new one is already held there. One that
        reached it while being ended does not count, and the point is armed again."""
        while not self.holds.held(process, point):
            pid = self.strike(process, signal.SIGKILL)
            self.until(f"'{process}' (pid {pid}) is gone", lambda: pid not in self.run.processes().values())
            if self.holds.held(process, point) != pid:
                return
            self.holds.disarm(process, point)
            self.holds.arm(process, point)

    def gate(self, process, state):
        """Let the run through to this state; where it would go on meanwhile it is held at its next step."""
        self.holds.disarm(*GATE)
        if state == "starting" and process in ("keeper", "agent"):
            self.holds.arm(*GATE)

    def reach(self, holder, point):
        """Wait until a process is held there; returns it. While a checkpoint is renamed the run is held at its next step."""
        if point == "renaming":
            pid = self.until(f"'{holder}' comes to 'saving'", lambda: self.holds.held(holder, "saving"))
            self.holds.arm(holder, "renaming")
            self.holds.arm(*GATE)
            self.holds.release(holder, "saving", pid)
        return self.until(f"'{holder}' comes to '{point}'", lambda: self.holds.held(holder, point))

    def resume(self):
        """Repeat the command until it is accepted. Its effect is not awaited: a process that must pass it on may be held for
        the next cells."""
        if not self.resuming or self.resuming.poll() == 0:
            self.resuming = None
        elif self.resuming.returncode is not None:
            self.resume_ask()

    def resume_ask(self):
        self.resuming = subprocess.Popen([ROLLCALL, "ctl", "--run", self.run.dir, "resume"], stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)

    def cells(self, cells):
        """One after the other; those in the paused state come first."""
        gate = ("worker cpu:0", "loading")
        pid = self.until("the trainer loads", lambda: self.holds.held(*gate))
        self.begin(*cells[0])
        self.gate(*cells[0][:2])
        self.holds.release(*gate, pid)
        for i, (process, state, sig) in enumerate(cells):
            follows = cells[i + 1] if i + 1 < len(cells) else None
            if state == "paused":
                if i == 0:
                    self.until("the run is paused", lambda: self.pause.poll() == 0)
                self.strike(process, sig)
                self.go_on()
                if follows and follows[1] == "paused":
                    continue
                if follows:
                    self.begin(*follows)
                    self.gate(*follows[:2])
                self.resume_ask()
                continue
            holder, point = self.holder(process, state)
            pid = self.reach(holder, point)
            self.strike(process, sig, held=pid if process == holder else None)
            if follows:
                self.begin(*follows)
            self.gate(*follows[:2] if follows else ("", ""))
            self.holds.release(holder, point, pid)
            self.go_on()
        self.until("resume is taken", lambda: not self.resuming or self.run.process.poll() is not None)

    def end(self):
        self.observer.end()
        self.run.kill()


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = itertools.count()
        cls.wanted = {}

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def run_one(self, settings, disturb, steps=STEPS, gated=False):
        """A whole run; disturb(d) is called while it goes. Returns what must be the same in all of them."""
        d = Disturbed(self.task, f"run-{next(self.n)}", settings, steps, gated)
        try:
            disturb(d)
            code, last = d.run.wait()
            self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", steps), d.run.logs())
            self.assertEqual(d.run.processes(), {})
            self.assertEqual(d.run.steps(), list(range(1, steps + 1)))
            self.items_check(d.run, settings, steps)
            return d.run.weights(steps), d.run.ledger()
        finally:
            d.end()

    def items_check(self, run, settings, steps):
        """Every item is in the ledger once, without gaps, and each step was trained on whole batches."""
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
            items = [r[0] for r in db.execute("select item from item order by item")]
            sizes = dict(db.execute("select step, count(*) from item where fate = 4 group by step"))
        self.assertEqual(items, list(range(len(items))))
        size = settings.get("train_batch_size", 8) * settings.get("num_trainers", 1)
        self.assertEqual(sizes, {s: size for s in range(1, steps + 1)})

    def undisturbed(self, settings, steps=STEPS):
        key = repr((settings, steps))
        if key not in self.wanted:
            self.wanted[key] = self.run_one(settings, lambda d: None, steps)
        return self.wanted[key]

    def compare(self, plan, disturb, gated):
        """plan: [(settings, what is done)], and disturb(d, what) does it; two runs at a time. All failures are reported, with
        what would repeat them."""
        for settings, _ in plan:
            self.undisturbed(settings)

        def one(settings, what):
            try:
                wrong = differs(self.undisturbed(settings), self.run_one(settings, lambda d: disturb(d, what), gated=gated))
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"
            if wrong:
                print(f"{settings} {what}: {wrong}", flush=True)    # a long test prints it at once
            return wrong
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda p: one(*p), plan))
        for (settings, what), wrong in zip(plan, results):
            with self.subTest(settings=settings, what=what):
                self.assertIsNone(wrong, wrong)

    def test_the_run_survives_any_process_dying_or_stopping_in_any_state(self):
        rng = random.Random(20)
        every = [(settings, runs_of(cells_of(settings), rng)) for settings in SETTINGS]
        if LONG:
            plan = [(settings, cells) for settings, runs in every for cells in runs]
        else:
            n = CELLS // CELLS_A_RUN
            plan = [(every[i % len(every)][0], every[i % len(every)][1][i // len(every)][-CELLS_A_RUN:]) for i in range(n)]
        self.compare(plan, Disturbed.cells, gated=True)

    def worker(self, d):
        status = d.run.ctl("status", "--json")
        return next(p for p in json.loads(status.stdout)["processes"] if p["name"] == "worker cpu:0")

    def stalled(self, d):
        """A worker stopped in the middle of a step must be named, with what it has not done, within 5 s of its last message."""
        d.holds.arm("worker cpu:0", "training")
        pid = d.until("the trainer trains", lambda: d.holds.held("worker cpu:0", "training"))
        d.until("it has said so", lambda: self.worker(d)["phase"] == "training")
        os.kill(pid, signal.SIGSTOP)
        d.holds.release("worker cpu:0", "training", pid)
        verdict = "ok"
        end = time.monotonic() + LIMIT
        while verdict != "stuck":
            self.assertLess(time.monotonic(), end, d.run.logs())
            worker = self.worker(d)
            verdict = worker["verdict"]
            self.assertTrue(verdict != "ok" or worker["heard_s"] < 5, worker)    # by the agent's count: this test may be late
        self.assertEqual(worker["phase"], "training")
        self.assertIn("no sign of life for", worker["waits_for"])
        text = d.run.ctl("status").stdout
        self.assertRegex(text, r"worker cpu:0.*stuck")
        refused = d.run.ctl("checkpoint", "--limit", "1")
        self.assertIn("it waits for worker cpu:0 in 'train'", refused.stderr)
        os.kill(pid, signal.SIGCONT)

    def test_a_stalled_worker_is_named_with_what_it_has_not_done(self):
        got = self.run_one({}, self.stalled)
        self.assertIsNone(differs(self.undisturbed({}), got))

    def alerts(self, run):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return [r[0] for r in db.execute("select text from event where who = 'agent'")]

    def stand_still(self, d, name, live):
        """Stop a process for good and wait until the agent has put another in its place. live: the rule is set by ctl."""
        run = d.run
        d.until("pause is taken", lambda: run.ctl("pause").returncode == 0)    # so that the run cannot end meanwhile
        pid = d.pid(name)
        os.kill(pid, signal.SIGSTOP)
        if live:
            done = run.ctl("set", "restart_stuck_s=0.5")
            self.assertEqual(done.returncode, 0, done.stderr)
        d.until("another life", lambda: run.processes().get(name) not in (pid, None))
        d.until("the alert is journaled", lambda: any(f"'{name}' (pid {pid}) has been stuck for" in text for text in self.alerts(run)))
        d.until("resume is taken", lambda: run.ctl("resume").returncode == 0)

    def test_a_process_that_stays_stuck_is_started_again_by_rule(self):
        for name, live in (("worker cpu:0", True), ("controller", False), ("scorer", False)):
            with self.subTest(process=name):
                want = self.undisturbed({})
                rule = {} if live else dict(restart_stuck_s=0.5)
                got = self.run_one(dict(heartbeat_s=0.1, **rule), lambda d: self.stand_still(d, name, live))
                self.assertEqual(want, got)

    def restart(self, d, names):
        """Restart processes as an operator; each restart must be in the journal once, with who and what."""
        d.until("pause is taken", lambda: d.run.ctl("pause").returncode == 0)
        for name in names:
            pid = d.pid(name)
            done = d.run.ctl("restart", name)
            self.assertEqual(done.returncode, 0, done.stderr + d.run.logs())
            self.assertNotIn(d.run.processes().get(name), (pid, None))
            what = f"'{name}' (pid {pid}) is killed and restarted"
            d.until("the restart is journaled", lambda: self.journaled(d.run, what))
            (kind, who, wall_s), = self.journaled(d.run, what)
            self.assertEqual(kind, "command")
            self.assertRegex(who, r".+@.+, ctl")
            self.assertLess(abs(wall_s - time.time()), LIMIT)
        done = d.run.ctl("restart", "agent")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot restart itself", done.stderr)
        d.until("resume is taken", lambda: d.run.ctl("resume").returncode == 0)

    def journaled(self, run, text):
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return db.execute("select kind, who, wall_s from event where text = ?", (text,)).fetchall()

    def test_a_restart_by_an_operator_changes_no_byte_and_is_in_the_audit_trail(self):
        got = self.run_one({}, lambda d: self.restart(d, ["worker cpu:0", "scorer", "controller", "keeper"]))
        self.assertIsNone(differs(self.undisturbed({}), got))

    @unittest.skipUnless(LONG, "with LONG=1")
    def test_the_run_survives_signals_at_random_moments(self):
        rng = random.Random(int(os.environ.get("SEED", time.time_ns())))

        def strike(d, process, sig, step, wait_s):
            while d.run.step() < step and d.run.process.poll() is None:
                time.sleep(0.003)
            time.sleep(wait_s)    # a random moment, not a wait for something
            try:
                d.strike(process, sig)
            except Over:    # no process is left to signal; the end is checked as usual
                return
            d.go_on()

        def moments():
            for i in range(int(os.environ.get("CELLS", 300))):
                settings = SETTINGS[i % len(SETTINGS)]
                process = rng.choice(processes_of(settings)[1:])
                sig = signal.SIGKILL if rng.random() < 0.8 else signal.SIGSTOP
                yield settings, sorted((process, sig, rng.randrange(-1, STEPS - 2), rng.random() * 0.3) for _ in range(2))
        self.compare(list(moments()), lambda d, what: [strike(d, *one) for one in what], gated=False)


if __name__ == "__main__":
    unittest.main()
