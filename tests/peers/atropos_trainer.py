"""rollcall is the trainer of Python's API server (run-api of atroposlib), to which an environment posts.

    build/peers-atropos/bin/python tests/peers/atropos_trainer.py

Each line it prints is one check that held."""
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
STARTER = os.path.join(ROOT, "build/starter")
STEPS = 4
LIMIT = 240    # seconds until a wait is given up


def held(what, condition):
    if not condition:
        raise AssertionError(what)
    print("ok", what)


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=LIMIT) as r:
        return json.loads(r.read())


def group(number, env):
    """Four sequences, of which two end with the token that is rewarded."""
    tokens = [[5, 6, 7, 8 + number % 3, 11 if i >= 2 else 12] for i in range(4)]
    return {"tokens": tokens, "masks": [[-100] * 4 + t[4:] for t in tokens], "scores": [-1, -1, 1, 1],
            "inference_logprobs": [[1.0] * 4 + [-3.0]] * 4, "env_id": env}


def environment(base, said):
    """What an environment of atroposlib does, as far as the API sees it."""
    env = {"status": "wait"}
    while env["status"] != "success" and not said["stop"]:
        time.sleep(0.2)
        env = ask(base + "/register-env", dict(max_token_length=64, desired_name="pairs", weight=1.0, group_size=4))
    n = 0
    while not said["stop"]:
        status = ask(base + "/status-env", {"env_id": env["env_id"]}, "GET")
        said["step"] = max(said["step"], status["current_step"])
        if status["queue_size"] * 4 >= 3 * 16:    # max_batches_offpolicy x batch_size
            time.sleep(0.1)
            continue
        n += 1
        assert ask(base + "/scored_data", group(n, env["env_id"]))["status"] == "received"


def main():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        api = subprocess.Popen([sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        stack.callback(api.wait)
        stack.callback(api.kill)
        log = open(os.path.join(folder, "train"), "w+")    # it may begin before the server does
        run = subprocess.Popen([ROLLCALL, "train", os.path.join(ROOT, "examples/atropos.yaml"), "--batch", "--format", "jsonl", "--runs-dir", folder,
                                "--name", "run", "--model-name", STARTER, "--atropos-url", base, "--training-steps", str(STEPS), "--batch-size", "4",
                                "--gradient-accumulation-steps", "4", "--seq-len", "64", "--lr", "1e-3", "--device", "cpu:0", "--save-path",
                                os.path.join(folder, "saved"), "--max-staleness", "100", "--threads", "1"], stdout=log, stderr=subprocess.STDOUT)
        stack.callback(run.kill)
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if ask(base + "/info")["batch_size"] != -1:
                    break
            time.sleep(0.1)
        info = ask(base + "/info")
        held("rollcall has registered with Python's run-api", info == {"batch_size": 16, "max_token_len": 64})
        said = {"stop": False, "step": 0}
        thread = threading.Thread(target=environment, args=(base, said))
        thread.start()
        while run.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        said["stop"] = True
        thread.join()
        log.seek(0)
        out = log.read()
        if run.poll() != 0:
            print(out[-4000:])
        held(f"the starter was trained for {STEPS} steps on its batches", run.poll() == 0)
        steps = [json.loads(line) for line in out.splitlines() if '"event":"step"' in line]
        held("each step had its groups", len(steps) == STEPS)
        held("the environment has seen the batches being formed", said["step"] >= STEPS - 1)


if __name__ == "__main__":
    sys.exit(main())
