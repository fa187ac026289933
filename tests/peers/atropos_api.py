"""atroposlib against 'rollcall serve --atropos-listen': its own tests of its API server, run on ours, and random requests to both.

The tests start 'python -m atroposlib.cli.run_api' on port 8000; a plug-in of pytest starts ours in its place. Then the same random
requests go to atroposlib's server and to ours (with --lifo, since it hands out the newest batch first): the answers must be equal.
Left out are the requests where ours differs on purpose (workers/serve/README.md)."""
import contextlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
FILES = ["test_api_compression.py", "test_api_legacy.py", "test_api_messages_handling.py"]
PLUGIN = '''
import os, shlex, subprocess
real = subprocess.Popen
class Popen(real):
    def __init__(self, args, *a, **k):
        if isinstance(args, (list, tuple)) and "atroposlib.cli.run_api" in args:
            args = shlex.split(os.environ["OURS"])
            with open(os.environ["STARTED"], "a") as f:
                f.write("x")
        super().__init__(args, *a, **k)
subprocess.Popen = Popen
'''
LIMIT = 60    # seconds until a wait is given up


def suite(folder):
    """atroposlib's tests on ours. Returns whether all passed."""
    with contextlib.closing(socket.socket()) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 8000))    # must be free: the tests have this port in their text
    with open(os.path.join(folder, "ours.py"), "w") as f:
        f.write(PLUGIN)
    tests = os.path.join(os.path.dirname(importlib.util.find_spec("atroposlib").origin), "tests")
    started = os.path.join(folder, "started")
    env = dict(os.environ, PYTHONPATH=folder, STARTED=started, OURS=shlex.join([ROLLCALL, "serve", "--atropos-listen", "localhost:8000"]))
    out = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "ours", "-p", "no:cacheprovider", *[os.path.join(tests, f) for f in FILES]],
                         env=env, capture_output=True, text=True, timeout=10 * LIMIT)
    n = os.path.getsize(started) if os.path.exists(started) else 0
    print(f"atroposlib's tests, our server started {n} times: {out.stdout.strip().splitlines()[-1]}")
    if out.returncode != 0:
        print(out.stdout)
    return out.returncode == 0 and n >= len(FILES)


class Server:
    def __init__(self, port, *command):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        end = time.monotonic() + LIMIT
        while True:
            try:
                self.ask("GET", "/info")
                return
            except OSError:
                self.connection.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def ask(self, method, path, body=None):
        self.connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        r = self.connection.getresponse()
        return r.status, r.read().decode()

    def stop(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def random_group(rng, n_env, sizes):
    n = rng.choice(sizes)
    g = {"tokens": [[rng.randrange(100) for _ in range(rng.randrange(4))] for _ in range(n)], "masks": [[rng.choice([-100, 1])] for _ in range(n)],
         "scores": [rng.choice([rng.random(), 1, "0.5", True]) for _ in range(n)]}
    if rng.random() < 0.8 and n_env:
        g["env_id"] = rng.randrange(n_env + 1)    # one more than there are
    for name, value in [("advantages", [[0.5]]), ("messages", [[{"role": "user", "content": "é"}]]), ("overrides", [{}]), ("images", [1, None]),
                        ("generation_params", {"temperature": 1}), ("group_overrides", None), ("unknown", 3), ("inference_logprobs", [[1, -2.5]]),
                        ("distill_token_ids", [[[1]]]), ("tokens", [[1.5]]), ("masks", None), ("scores", [None]), ("overrides", [3])]:
        if rng.random() < (0.03 if name in ("tokens", "masks", "scores") or value == [3] else 0.3):
            g[name] = value    # some of these are faults
    return g


def requests(rng):
    """A random walk: yields requests, and is sent the status and text of each answer."""
    sizes, n_env, minima = rng.choice([[4], [2, 4], [1, 2, 4, 8], [3, 4]]), 0, rng.random() < 0.5
    trainer = dict(wandb_group="g", wandb_project="p", batch_size=rng.choice([4, 8, 16]), max_token_len=64, checkpoint_dir="c",
                   save_checkpoint_interval=1, starting_step=rng.randrange(5), num_steps=9)
    yield "POST", "/register", trainer
    for _ in range(150):
        kind = rng.choice(["post"] * 6 + ["list"] * 2 + ["batch"] * 3 + ["env", "status-env", "status-env", "get", "leave", "bad"])
        if kind == "post":
            yield "POST", "/scored_data", random_group(rng, n_env, sizes)
        elif kind == "list":
            yield "POST", "/scored_data_list", [random_group(rng, n_env, sizes) for _ in range(rng.randrange(4))]
        elif kind == "batch":
            yield "GET", "/batch", None
        elif kind == "env":
            body = dict(max_token_length=rng.choice([64, 128]), desired_name=rng.choice("ab"), weight=rng.choice([1, 0.5, "2"]),
                        group_size=rng.choice(sizes))
            if minima and rng.random() < 0.5:
                body["min_batch_allocation"] = rng.choice([0.1, 0.25, 0.5, 0.75])
            _, answer = yield "POST", "/register-env", body
            n_env += "success" in answer
        elif kind == "status-env" and n_env:
            yield "GET", "/status-env", {"env_id": rng.randrange(n_env)}
        elif kind == "leave" and n_env > 1 and rng.random() < 0.3:
            yield "POST", "/disconnect-env", {"env_id": rng.randrange(1, n_env)}    # the first one stays: weights must not add up to 0
        elif kind == "get":
            yield "GET", rng.choice(["/", "/info", "/wandb_info", "/status", "/latest_example"]), None
        elif kind == "bad":
            yield rng.choice([("POST", "/register", {**trainer, "batch_size": "x"}), ("POST", "/register", trainer), ("GET", "/nothing", None),
                              ("POST", "/register-env", {"desired_name": None}), ("GET", "/status-env", None), ("POST", "/scored_data", [])])
    yield "GET", "/reset_data", None


def comparable(status, text, path):
    """What must be equal of an answer: of a refusal only its status, of numbers their values."""
    if status != 200:
        return status
    if path == "/register":
        return status, list(json.loads(text))
    if path == "/reset_data":
        return status, text
    return status, json.loads(text)


def walks(n):
    port, own_port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        theirs = Server(port, sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port))
        stack.callback(theirs.stop)
        ours = Server(own_port, ROLLCALL, "serve", "--atropos-listen", f"127.0.0.1:{own_port}", "--lifo", "--env-expire-s", "0")
        stack.callback(ours.stop)
        n_asked, n_batch = 0, 0
        for seed in range(n):
            walk, answer = requests(random.Random(seed)), None
            with contextlib.suppress(StopIteration):
                while True:
                    method, path, body = walk.send(answer)
                    answer, own = theirs.ask(method, path, body), ours.ask(method, path, body)
                    a, b = comparable(*answer, path), comparable(*own, path)
                    if a != b:
                        print(f"walk {seed}, request {n_asked}: {method} {path} {json.dumps(body)}\n  atroposlib: {answer}\n  rollcall:   {own}")
                        return False
                    n_asked += 1
                    n_batch += path == "/batch" and '"tokens"' in answer[1]
            with contextlib.suppress(StopIteration):
                walk.send(answer)
        print(f"ok {n_asked} random requests, {n_batch} batches: equal answers")
        return True


def main():
    print("atroposlib", importlib.metadata.version("atroposlib"))
    with tempfile.TemporaryDirectory() as folder:
        ok = suite(folder)
    return 0 if walks(60) and ok else 1


if __name__ == "__main__":
    sys.exit(main())
