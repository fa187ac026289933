"""Shared by the tests of whole runs: a tiny model, a task with real gradients, runs, and killing them.

The model has random weights and the reward is a program that likes some letters, so that every step has a gradient without
any training beforehand. Nothing here waits a fixed time: conditions with generous limits."""
import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
import tiny_model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
LIMIT = 240    # seconds until a wait is given up
KEPT = os.path.join(ROOT, "build/test-logs/stuck")    # folders of runs that a test has waited for in vain

def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"    # a zombie only waits to be reaped
    except OSError:
        return False


REWARD = '''import json, sys
for line in sys.stdin:
    q = json.loads(line)
    text = q["response"]
    good = sum(ord(c) % 2 for c in text) / max(len(text), 1)
    print(json.dumps({"id": q["id"], "reward": good, "format_acc": 1, "ans_acc": good > 0.5}), flush=True)
'''

# An environment. It says back a number that depends on the seed and on all that the model has said; the first answer depends on the seed alone.
PLAY = '''import json, sys
games = {}
for line in sys.stdin:
    q = json.loads(line)
    game = games.setdefault(q["episode"], [0, 0])
    answer = {}
    if q["op"] == "reset":
        game[:] = [q["seed"] % 97, 0]
        answer = {"observation": f"start {game[0]}"}
    elif q["op"] == "step":
        game[:] = [(game[0] * 31 + sum(map(ord, q["text"]))) % 1000, game[1] + 1]
        good = sum(ord(c) % 2 for c in q["text"]) / max(len(q["text"]), 1)
        answer = {"observation": f"seen {game[0]}" + " tag" * q["text"].count("</think>"), "role": "tool", "reward": good, "done": game[0] % 5 == 0}
    if q["op"] == "end":
        del games[q["episode"]]
    print(json.dumps({"id": q["id"], **answer}), flush=True)
'''

POOR_REWARD = r"""# every life of it scores ten responses, fails on two and hangs: so each step of 32 sees all of that
i=0
while read -r line; do
    id=${line#*\"id\":} i=$((i + 1))
    [ $i -gt 12 ] && exec sleep 3600
    [ $i -gt 10 ] && told='"error":"no data"' || told='"reward":'$i
    echo "{\"id\":${id%%,*},$told}"
done
"""


def commands():
    """(pid, words of its command) of every living process."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(pid), words


def processes_of(folder):
    """{pid: command} of the living processes whose command or environment names the folder."""
    found = {}
    for pid, words in commands():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
            if (any(folder in w for w in words) or folder.encode() in f.read()) and alive(pid):
                found[pid] = " ".join(words)
    return found


def can_mount():
    """May a program mount something that it alone sees?"""
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


LEFT_OUT = object()    # as a value of run_file: the setting is not in the file


class Task:
    """A folder with model, data, reward program and run file; deleted with the object."""

    def __init__(self, **shape):
        self.tmp = tempfile.TemporaryDirectory(prefix="rc-run-")
        self.dir = self.tmp.name
        tiny_model.write(self.path("model"), seed=5, **shape)
        with open(self.path("reward.py"), "w") as f:
            f.write(REWARD)
        with open(self.path("train.jsonl"), "w") as f:
            for i in range(64):
                row = {"messages": [{"role": "user", "content": f"{i}+{i * 7 % 10}="}], "gt_answer": str(i + i * 7 % 10)}
                f.write(json.dumps(row) + "\n")

    def path(self, name):
        return os.path.join(self.dir, name)

    def poor_reward(self):
        """A reward program that fails and hangs now and then."""
        with open(self.path("poor.sh"), "w") as f:
            f.write(POOR_REWARD)
        return f"program:exec sh {self.path('poor.sh')}"

    def later_reward(self, name, command):
        """A reward program that scores what the start asks it, and is this command afterwards; name: a folder that says so."""
        with open(self.path(name + ".sh"), "w") as f:
            f.write(f"""if mkdir {self.path(name)} 2>/dev/null; then
    while read -r line; do id=${{line#*'"id":'}}; echo '{{"id":'${{id%%,*}}',"reward":1}}'; done
else
    {command}
fi
""")
        return f"program:exec sh {self.path(name)}.sh"

    def run_file(self, file="run.yaml", **settings):
        base = dict(model=self.path("model"), dataset=self.path("train.jsonl"), system_prompt="none",
                    reward_type=f"program:{sys.executable} {self.path('reward.py')}", max_new_tokens=12, max_prompt_tokens=64,
                    inference_batch_size=8, inference_microbatch_size=8, train_batch_size=8, train_minibatch_size=8,
                    num_generations=4, learning_rate=1e-3, lr_schedule="constant", kl_coeff=0, save_interval=4, threads=1,
                    keep_checkpoints=0, num_episodes=1000, scorer_threads=1)
        base.update(settings)
        path = self.path(file)
        with open(path, "w") as f:
            for k, v in base.items():
                if v is not LEFT_OUT:
                    f.write(f"{k}: {json.dumps(v)}\n")
        return path

    def close(self):
        """Delete the folder once the processes of its runs, nodes that are leaving among them, have ended."""
        end = time.monotonic() + LIMIT / 4
        while (left := processes_of(self.dir)) and time.monotonic() < end:
            time.sleep(0.01)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.tmp.cleanup()
        assert not left, f"still there at the end: {left}"


def built(name):
    """The path of a program that the tests' build makes in addition to rollcall; says at once what is missing."""
    path = os.path.join(os.path.dirname(ROLLCALL), "tests", name)
    target = name.removeprefix("lib").removesuffix(".so")
    if not os.path.exists(path):
        raise FileNotFoundError(f"'{path}' is not built; cmake --build --preset release --target {target}")
    return path


class Holds:
    """Points where processes of a run are held (protocol/base/hold.h), so that a signal comes exactly there."""

    def __init__(self, dir):
        self.dir = dir
        os.makedirs(dir, exist_ok=True)

    def arm(self, process, point):
        open(os.path.join(self.dir, f"{process}@{point}"), "w").close()

    def held(self, process, point):
        """The id of the process held there; None: none yet."""
        name = f"{process}@{point}."
        return next((int(f[len(name):]) for f in os.listdir(self.dir) if f.startswith(name)), None)

    def disarm(self, process, point):
        """Stop holding processes there, and release one that is held."""
        name = f"{process}@{point}"
        while files := [f for f in os.listdir(self.dir) if f == name or f.startswith(name + ".")]:
            for f in files:
                with contextlib.suppress(FileNotFoundError):    # a process comes there at this very moment, and renames it
                    os.unlink(os.path.join(self.dir, f))

    def release(self, process, point, pid):
        os.unlink(os.path.join(self.dir, f"{process}@{point}.{pid}"))


ports_given = set()


def free_port():
    """A port of 127.0.0.1 that nobody listens on now, and another one each time."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        if port not in ports_given:
            ports_given.add(port)
            return port


def written(file):
    """What a process has written to a file that it was started with. It shares its file position with us, so the file is opened
    a second time for reading: a seek here would make the process write in the middle of its output."""
    if file.closed:    # the run has been cleaned up
        return ""
    with open(f"/proc/self/fd/{file.fileno()}", errors="replace") as f:
        return f.read()


class Run:
    """One run as `train --batch --format jsonl` starts it."""

    def __init__(self, task, name, run_file=None, extra=(), resume=False, env=None, files=None, prefix=()):
        """files: how many each process may open, with no way to raise it. prefix: words before the command."""
        self.dir = os.path.join(task.path("runs"), name)
        args = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"] if files else [*prefix]
        args += [ROLLCALL, "train", "--batch", "--format", "jsonl"]
        args += ["--resume", self.dir] if resume else [run_file, "--runs-dir", task.path("runs"), "--name", name]
        self.log = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")    # both are closed by kill
        self.process = subprocess.Popen(args + list(extra), stdout=self.log, stderr=self.errors, start_new_session=True,
                                        env=dict(os.environ, **(env or {})))

    def output(self):
        return [json.loads(line) for line in written(self.log).split("\n")[:-1]]    # the last one may be half written

    def told(self, event):
        """The lines of one kind of event."""
        return [line for line in self.output() if line["event"] == event]

    def wait(self, *others):
        """The exit code and the last line. others: its nodes, for what is told when it never ends."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            text = self.stuck("the run has not ended in time", *others)
            self.kill()
            raise AssertionError(text)
        text = self.logs(whole=True)
        if "Sanitizer" in text or "runtime error:" in text:
            raise AssertionError("a sanitizer has spoken\n" + text)
        lines = self.output()
        return code, lines[-1] if lines else {}

    def logs(self, whole=False):
        """The last lines of all logs, for messages of failed tests."""
        out = [written(self.errors)[-2000:]]
        most = 0 if whole else -1500
        logs = os.path.join(self.dir, "logs")
        for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else []:
            with open(os.path.join(logs, name), errors="replace") as f:
                out.append(f"--- {name}\n" + f.read()[most:])
        return "\n".join(out)

    def stuck(self, what, *others):
        """The message of a test that has waited for it in vain: what each process waits for, where the folders are kept, and all logs."""
        code = self.process.poll()
        text = [what, "it runs" if code is None else f"it has ended with {code}"]
        try:
            done = self.ctl("status", limit=20)
            text.append(done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            text.append("it does not answer what its processes wait for")
        for side in (self, *others):
            to = os.path.join(KEPT, f"{os.getpid()}-{os.path.basename(side.dir)}")
            with contextlib.suppress(shutil.Error):    # files that are replaced meanwhile
                shutil.copytree(side.dir, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("sock", "view", "checkpoints", "model", "data"))
            text += [f"======== {os.path.basename(side.dir)}, kept in {to}", side.logs()]
        return "\n".join(text)

    def journal_number(self, query):
        """What a query of one number finds in the journal; -1: there is no such table yet."""
        path = os.path.join(self.dir, "journal.db")
        if not os.path.exists(path):
            return -1
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10) as db:
                return db.execute(query).fetchone()[0]
        except sqlite3.Error:
            return -1

    def step(self):
        """The last step in the journal; -1: there is none yet."""
        return self.journal_number("select coalesce(max(step), 0) from step where superseded = 0")

    def n_sample(self):
        """How many samples of hosts' and devices' figures are in the journal."""
        return self.journal_number("select count(*) from sample")

    def wait_step(self, step, *others):
        end = time.monotonic() + LIMIT
        while self.step() < step:
            if time.monotonic() > end or self.process.poll() is not None:
                text = self.stuck(f"step {step} was not reached", *others)
                self.kill()
                raise AssertionError(text)
            time.sleep(0.005)

    def living(self):
        """(name, pid) of each of the run's living processes; what one has just forked has its name for a moment."""
        return [(words[words.index("--name") + 1], pid) for pid, words in commands() if self.dir in words and "--name" in words
                and words[1] in ("agent", "controller", "worker", "scorer", "gate", "uplink", "starter", "environments")]

    def processes(self):
        """{name: pid} of the run's living processes."""
        return dict(reversed(self.living()))    # the older of two

    def kill(self):
        """kill -9 every process of the run, and those that watch it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.errors.close()
        stopped = set()
        while new := {pid for _, pid in self.living()} - stopped:    # none may start another one that died before it
            for pid in new:
                self.signal(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            self.signal(pid, signal.SIGKILL)
        end = time.monotonic() + LIMIT
        while ((left := self.living()) or self.locked()) and time.monotonic() < end:
            for _, pid in left:    # it was just becoming itself (execve), and no process of the run by its command
                self.signal(pid, signal.SIGKILL)
            time.sleep(0.01)

    def locked(self):
        """Does one of the run's processes hold its lock? One that is ending does when it has no command any more."""
        path = os.path.join(self.dir, "lock")
        if os.access(path, os.W_OK):
            with open(path, "r+b") as f:
                try:
                    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return True
        return False

    @staticmethod
    def signal(pid, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def ctl(self, *args, limit=LIMIT):
        return subprocess.run([ROLLCALL, "ctl", "--run", self.dir, *args], capture_output=True, text=True, timeout=limit)

    def ctl_on_terminal(self, answer, *args):
        """The same with a terminal as standard input and error; answer is typed when the question has come."""
        ours, theirs = os.openpty()
        done = subprocess.Popen([ROLLCALL, "ctl", "--run", self.dir, *args], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True)
        os.close(theirs)
        said = b""
        end = time.monotonic() + LIMIT
        while b"[y/N] " not in said and done.poll() is None and time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                said += os.read(ours, 4096)
        if done.poll() is None:
            os.write(ours, answer.encode())
        out = done.communicate(timeout=LIMIT)[0]
        while select.select([ours], [], [], 0.2)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:    # the other end is closed
                break
        os.close(ours)
        return done.returncode, out, said.decode()

    def weights(self, step, file="model.safetensors"):
        with open(os.path.join(self.dir, f"checkpoints/step-{step:06d}", file), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def ledger(self):
        """[(item, row, fate, step, version)] of every item filtered or trained, once each, up to the last one trained: of
        what was sampled for steps beyond the run's end, more or less may have come back."""
        with sqlite3.connect(f"file:{os.path.join(self.dir, 'journal.db')}?mode=ro", uri=True) as db:
            return db.execute("select item, prompt_row, fate, step, weight_version from item where fate in (2, 4)"
                              " and item <= (select max(item) from item where fate = 4) order by item").fetchall()

    def steps(self):
        with sqlite3.connect(f"file:{os.path.join(self.dir, 'journal.db')}?mode=ro", uri=True) as db:
            return [r[0] for r in db.execute("select step from step where superseded = 0 order by step")]


class RunCase(unittest.TestCase):
    """Tests that start runs of one task and command them."""

    @classmethod
    def setUpClass(cls):
        cls.task = Task()
        cls.n = 0

    @classmethod
    def tearDownClass(cls):
        cls.task.close()

    def start(self, *extra, env=None, files=None, prefix=(), **settings):
        """A run that goes on until the test ends it, unless extra says otherwise."""
        type(self).n += 1
        # a separate file: the next run may be started before this one has read it
        run = Run(self.task, f"run-{self.n}", self.task.run_file(f"run-{self.n}.yaml", **settings), ["--max-steps", "100000", *extra], env=env, files=files,
                  prefix=prefix)
        self.addCleanup(run.kill)
        return run

    def finish(self, run, step):
        """Weights and ledger of a run that must end with step."""
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", step), run.logs())
        return run.weights(step), run.ledger()

    def tool(self, *args, lines=()):
        """What a subcommand prints for these lines of input, both JSON; it must succeed."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        p = subprocess.run([ROLLCALL, *args], input=text, capture_output=True, text=True, timeout=240)
        self.assertEqual(p.returncode, 0, p.stderr)
        return [json.loads(line) for line in p.stdout.splitlines()]

    def query(self, run, text):
        """Rows of the run's journal."""
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=10) as db:
            return db.execute(text).fetchall()

    def until(self, what, reached, *runs):
        """Wait until reached() holds; when it never does, the runs' logs are printed (of a run and its nodes, in this order)."""
        end = time.monotonic() + LIMIT
        while not reached():
            if time.monotonic() > end:
                what += ": not in time"
                raise AssertionError(runs[0].stuck(what, *runs[1:]) if runs else what)
            time.sleep(0.01)

    def ok(self, run, *args):
        """What ctl prints; the command must succeed."""
        done = run.ctl(*args)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}{run.logs()}")
        return done.stdout

    def status(self, run):
        return json.loads(self.ok(run, "status", "--json"))
