"""verifiers 0.4 against rollcall: a taskset evaluated through 'rollcall serve', and trained with a run that serves its own policy.

    build/peers-verifiers/bin/python tests/peers/verifiers_run.py

Each line it prints is one check that held."""
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
EXAMPLES = os.path.join(ROOT, "examples/environments")
STARTER = os.path.join(ROOT, "build/starter")
STEPS = 12
LIMIT = 400    # seconds until a wait is given up
sys.path.insert(0, EXAMPLES)


def held(what, condition):
    if not condition:
        raise AssertionError(what)
    print("ok", what, flush=True)


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def evaluate(base):
    """24 tasks through the eval client, which speaks /v1/chat/completions. Returns the traces."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config
    env = load_environment(resolve_env_config({"taskset": {"id": "verifiers-sums"}, "agent": {"runtime": {"type": "subprocess"}}}))
    context = ModelContext("starter", client=EvalClientConfig(base_url=base + "/v1", api_key_var="RC_NO_KEY"),
                           sampling=SamplingConfig(temperature=0.0, max_tokens=64))
    gate = asyncio.Semaphore(6)
    async with env.serving():
        episodes = await asyncio.gather(*(env.run_slot(s, context, gate) for t in env.taskset.take(24) for s in env.slots(t)))
    return [t for e in episodes for t in e.traces]


def evaluated():
    server = subprocess.Popen([ROLLCALL, "serve", "--model", STARTER, "--listen", "127.0.0.1:0", "--threads", "1"], stdout=subprocess.PIPE, text=True)
    try:
        traces = asyncio.run(evaluate(re.search(r"http://\S+:\d+", server.stdout.readline())[0]))
    finally:
        server.kill()
        server.wait()
    held("24 episodes through /v1 without an error", len(traces) == 24 and all(t.ok for t in traces))
    right = sum(t.reward for t in traces)
    held(f"the starter gets some of them right, greedily ({right:.0f} of 24)", 0 < right < 24)


def trained():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        door, policy = free_port(), free_port()
        log = open(os.path.join(folder, "train"), "w+")
        run = subprocess.Popen([ROLLCALL, "train", "--batch", "--format", "jsonl", "--runs-dir", folder, "--name", "run", "--model", STARTER,
                                "--environments", json.dumps({"listen": f"127.0.0.1:{door}"}), "--serve", f"127.0.0.1:{policy}",
                                "--max-steps", str(STEPS), "--train-batch-size", "4", "--inference-batch-size", "4", "--num-generations", "4",
                                "--max-staleness", "100", "--max-prompt-tokens", "100", "--max-new-tokens", "100", "--threads", "1"],
                               stdout=log, stderr=subprocess.STDOUT)
        stack.callback(run.kill)
        bridge_log = open(os.path.join(folder, "bridge"), "w+")
        bridge = subprocess.Popen([sys.executable, os.path.join(EXAMPLES, "verifiers_bridge.py"), "verifiers-sums", "--policy",
                                   f"http://127.0.0.1:{policy}", "--groups", f"http://127.0.0.1:{door}", "--tokenizer", STARTER, "--n", "4"],
                                  env=dict(os.environ, PYTHONPATH=EXAMPLES, HF_HUB_OFFLINE="1"), stdout=bridge_log, stderr=subprocess.STDOUT)
        stack.callback(bridge.kill)
        code = run.wait(LIMIT)
        bridge_code = bridge.wait(60)
        log.seek(0)
        bridge_log.seek(0)
        said, bridge_said = log.read(), bridge_log.read()
        if code or bridge_code:
            print(said[-3000:], bridge_said[-5000:], sep="\n---- bridge\n")
        held(f"a taskset of verifiers has trained the starter for {STEPS} steps, on the policy of the run itself", code == 0)
        held("the bridge ends with the run", bridge_code == 0)
        steps = [json.loads(line)["metrics"] for line in said.splitlines() if '"event":"step"' in line]
        groups = [json.loads(line) for line in bridge_said.splitlines() if line.startswith('{"version"')]
        held("each step had its groups, and none was refused", len(steps) == STEPS and all(s["env/refused"] == 0 for s in steps))
        held("no episode failed", not [g["errors"] for g in groups if g["errors"]])
        held("the policy that was asked grew with the run", len({g["version"] for g in groups}) > STEPS // 2)
        diff = max(s["train/sampler_trainer_diff"] for s in steps if "train/sampler_trainer_diff" in s)
        held(f"the log-probs that verifiers kept are the trainer's ({diff:g})", diff < 1e-6)


if __name__ == "__main__":
    evaluated()
    trained()
