#!/usr/bin/env python3
"""GRPO steps on one GPU through a whole run (agent, controller, worker, scorer), with random weights of real shapes: where the
time and the memory of a step go.

    tests/gpu/step.py [--device cuda:0] [--work DIR] [--steps 3] [CASE...]      cases: 1.5B 7B long 32k (default: these);
32B and 32B-team, on four GPUs: data parallel on 141 GB each, and one team that trains and samples on 80 GB each

Each case prints one JSON line. The first also times generating alone (bench decode) and training alone (bench train) at the
same sizes: a step of the run may take 1.08 times their sum. Memory in use must be within 3 % of what was planned. Exits 1 when
one of these is missed. ROLLCALL names the program.
"""
import argparse, glob, json, os, re, shutil, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))
CASES = {
    "1.5B": dict(shape="Qwen2.5-1.5B", prompts=64, group=8, new=512, budget=16384, alone=True),
    "7B": dict(shape="Qwen2.5-7B", prompts=32, group=8, new=256, budget=8192, more=["--offload_optimizer", "true"]),
    "32B": dict(shape="Qwen2.5-32B", prompts=32, group=8, new=256, budget=8192, devices="cuda:0,cuda:1,cuda:2,cuda:3",
                more=["--offload_optimizer", "true", "--recompute_full", "true"]),
    "32B-team": dict(shape="Qwen2.5-32B", prompts=32, group=8, new=256, budget=8192, devices="cuda:0,cuda:1,cuda:2,cuda:3", team=4,
                     more=["--offload_optimizer", "true", "--recompute_full", "true"]),
    "long": dict(shape="Qwen2.5-1.5B", prompts=1, group=8, new=3584, budget=16384),
    "starter": dict(shape="starter", prompts=4, group=4, new=16, budget=1024, alone=True),    # to try this script on CPUs, as the next
    "starter-team": dict(shape="starter", prompts=4, group=4, new=16, budget=1024, devices="cpu:0,cpu:1", team=2),
}
PHASES = ("generate_s", "train_s", "idle_s", "score_s", "step_s")


def out(command, **more):
    p = subprocess.run(command, capture_output=True, text=True, **more)
    if p.returncode:
        sys.exit(f"step.py: {' '.join(command)} ended with {p.returncode}:\n{p.stdout[-2000:]}{p.stderr[-2000:]}")
    return p.stdout


def bench(*args):
    return json.loads(out([ROLLCALL, "bench", *map(str, args)]).splitlines()[-1])


def bench_try(*args):
    """The same where a failure is a result: {"check": False, "why": ...}."""
    p = subprocess.run([ROLLCALL, "bench", *map(str, args)], capture_output=True, text=True)
    return json.loads(p.stdout.splitlines()[-1]) if p.returncode == 0 else dict(check=False, why=p.stderr.strip()[-400:])


class Table:
    """Measurements that must agree in bytes: a JSON line for each as it comes, and all of them as a table at the end."""

    def __init__(self):
        self.rows, self.failed = [], False

    def put(self, what, r, said=""):
        """A measurement of `what`: r has `check` and `hash`, or `why` where it failed; said: its figures for the table."""
        end = f"FAILED: {r['why']}" if "why" in r else f"{said}  {r['hash'][:16]}  {'same bytes' if r['check'] else 'OTHER BYTES'}"
        self.rows.append(f"{what}  {end}")
        self.failed |= not r["check"]
        print(json.dumps(r), flush=True)

    def end(self):
        print("\n".join(self.rows))
        sys.exit(self.failed)


def data_make(work):
    """The arithmetic problems with their tokenizer; only prompts matter here."""
    data = os.path.join(work, "data")
    if not os.path.exists(os.path.join(data, "train.jsonl")):
        out([sys.executable, os.path.join(ROOT, "examples/arithmetic.py"), data])
    return data


def model_make(work, shape, data):
    """A directory of random weights; one at a time, for they are large. Returns it and how many ids its tokenizer has."""
    path = os.path.join(work, "model")
    shutil.rmtree(path, ignore_errors=True)
    made = json.loads(out([ROLLCALL, "random-model", "--shape", shape, "--tokenizer", os.path.join(data, "tokenizer"), "--keep-vocab",
                           "--out", path]).splitlines()[-1])
    return path, made["tokenizer_ids"]


def log_values(run, sentence):
    """key=value pairs of every log line with this sentence, in order."""
    found = []
    for path in glob.glob(os.path.join(run, "logs", "*")):
        with open(path, encoding="utf-8", errors="replace") as f:
            found += [dict(re.findall(r"(\w+)=(\S+)", line)) for line in f if sentence in line]
    return found


def whole_run(c, devices, work, label, steps, more=(), workers=None):
    """A whole run of a case on these devices ("cuda:0,cuda:1"), all of them, or the first `workers` of them, training and sampling, each
    or in teams of c["team"]. Returns its directory, the metrics of its steps, and how many ids its tokenizer has. The batch is the same
    whole batch however many devices there are."""
    data, team = data_make(work), c.get("team", 1)
    n = workers or (devices.count(",") + 1) // team
    teams = ["-tp", str(team), "-ptp", str(team)] if team > 1 else []
    if c["prompts"] % n:
        sys.exit(f"step.py: {c['prompts']} prompts cannot be dealt to {n} devices")
    model, n_live = model_make(work, c["shape"], data)
    runs = os.path.join(work, "runs")
    each = str(c["prompts"] // n)
    text = out([ROLLCALL, "train", "--batch", "--format", "jsonl", "--runs-dir", runs, "--name", label, "--model", model,
                "--dataset", os.path.join(data, "train.jsonl"), "--devices", devices, "-t", str(n), "-i", str(n), "--system_prompt", "none",
                "--reward_type", f"program:{sys.executable} {os.path.join(ROOT, 'tests/gpu/spread.py')}",
                "--max_steps", str(steps), "--num_generations", str(c["group"]),
                "--inference_batch_size", each, "--inference_microbatch_size", each, "--train_batch_size", each,
                "--train_microbatch_size", "1", "--token_budget", str(c["budget"]), "--max_prompt_tokens", "64",
                "--max_new_tokens", str(c["new"]), "--ignore_eos", "true", "--algo", "GRPO", "--kl_coeff", "0",
                "--save_interval", "0", "--rollout_log_interval", "0", *teams, *c.get("more", []), *more])
    events = [json.loads(x) for x in text.splitlines()]
    step = [e["metrics"] for e in events if e["event"] == "step"]
    if len(step) != steps or events[-1]["event"] != "finished":
        sys.exit(f"step.py: the run ended with {events[-1]} after {len(step)} steps")
    return os.path.join(runs, label), step, n_live


def medians(step, phases=PHASES):
    """Of all steps but the first one, which records graphs; None: not measured in this run."""
    return {k: round(statistics.median(m["time/" + k] for m in step[1:]), 4) if "time/" + k in step[-1] else None for k in phases}


def run(name, c, device, work, steps):
    device = c.get("devices", device)
    path, step, n_live = whole_run(c, device, work, f"step-{name}-{os.getpid()}", steps, ["--save_at_end", "false"])
    late = step[1:]
    got = medians(step)
    got["train_tok_per_s"] = round(statistics.median(m["perf/train_tok_per_s"] for m in late))
    got["rollout_tok_per_s"] = round(statistics.median(m["perf/rollout_tok_per_s"] for m in late))
    got["sampler_trainer_diff"] = max(m["train/sampler_trainer_diff"] for m in step)
    plan, used = log_values(path, "memory planned"), log_values(path, "memory used")
    got["memory"] = {k: float(v) if k != "by_turns" else v for k, v in plan[-1].items() if k.endswith("_gb") or k == "by_turns"} if plan else None
    got["used_gb"] = float(used[-1]["used_gb"]) if used else None
    got["used_of_planned"] = float(used[-1]["ratio"]) if used else None
    n = c["prompts"] * c["group"]
    packed = got["train_tok_per_s"] * got["train_s"]
    prompt = max(2, round(packed / n) - c["new"] + 1)
    if c.get("alone"):
        where = ["--device", device, "--shape", c["shape"], "--live", n_live]
        d = bench("decode", *where, "--batch", n, "--group", c["group"], "--prompt", prompt, "--new", c["new"], "--rounds", 1)
        length = prompt + c["new"] - 1
        t = bench("train", *where, "--seq", length, "--tokens", n * length, "--micro", max(c["budget"], length), "--rounds", 1)
        got["generate_alone_s"], got["train_alone_s"] = d["ms"] / 1e3, t["ms"] / 1e3
        got["of_alone"] = round(got["step_s"] / (got["generate_alone_s"] + got["train_alone_s"]), 4)
    return dict(bench="step", case=name, model=c["shape"], device=device, prompts=c["prompts"], group=c["group"], new=c["new"], **got)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--work", default="/tmp/rollcall-step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("case", nargs="*")
    a = parser.parse_args()
    os.makedirs(a.work, exist_ok=True)
    missed = []
    for name in a.case or ["1.5B", "long", "32k", "7B"]:
        if name == "32k":    # one sequence of 32,768 tokens, a step of its own
            r = bench("train", "--device", a.device, "--shape", "Qwen2.5-1.5B", "--seq", 32768, "--tokens", 32768, "--rounds", 2)
            r["used_of_planned"] = round(r["memory_gb"] / r["planned_gb"], 4)
        else:
            r = run(name, CASES[name], a.device, a.work, a.steps)
        print(json.dumps(r), flush=True)
        if r.get("of_alone", 1) > 1.08:
            missed.append(f"{name}: a step takes {r['of_alone']} of its parts alone")
        if r.get("used_of_planned") is not None and abs(r["used_of_planned"] - 1) > 0.03:
            missed.append(f"{name}: memory in use is {r['used_of_planned']} of the plan")
        if r.get("sampler_trainer_diff", 0) != 0:
            missed.append(f"{name}: log-probs differ between sampler and trainer by {r['sampler_trainer_diff']}")
    for m in missed:
        print("missed:", m)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
