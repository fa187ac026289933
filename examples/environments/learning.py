#!/usr/bin/env python3
"""Prints the table of what the starter learns from the two environments here: share of right answers before and after, sampled at
temperature 1 and greedily.

    examples/environments/learning.py [guess] [calculator] [--seed N] [--runs-dir D] [-- MORE...]

Arguments after -- go to every 'rollcall train'. Needs build/starter (examples/quickstart.sh --prepare). Makes build/data/guess*.jsonl and
build/data/calculator*.jsonl. Exits 1 when a task gains less than 20 points, sampled.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "build", "data")
TASKS = ("guess", "calculator")
SETS = ("sampled", "greedy")


def expression(r):
    a, b = r.randint(11, 99), r.randint(11, 99)
    return f"{max(a, b)}-{min(a, b)}" if r.random() < 0.5 else f"{a}+{b}"


def data_write():
    """Deterministic: the same bytes anywhere."""
    for name, n, seed in (("", 4096, 1), ("_eval", 256, 2)):
        r = random.Random(seed)
        with open(os.path.join(DATA, f"guess{name}.jsonl"), "w", encoding="utf-8") as f:
            for i in range(n):
                f.write(json.dumps({"messages": [{"role": "user", "content": "What is x?"}], "most": 9, "n": i}) + "\n")
        with open(os.path.join(DATA, f"calculator{name}.jsonl"), "w", encoding="utf-8") as f:
            for _ in range(n):
                e = expression(r)
                f.write(json.dumps({"messages": [{"role": "user", "content": f"What is {e}?"}], "expression": e}) + "\n")


def means(run):
    """{set: [(step, share right)...]} from the run's evaluation files."""
    found = {s: [] for s in SETS}
    for name in os.listdir(os.path.join(run, "eval")):
        m = re.fullmatch(r"(\w+)_training_step_(\d+)\.jsonl", name)
        if not m or m[1] not in found:
            continue
        with open(os.path.join(run, "eval", name), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        found[m[1]].append((int(m[2]), sum(bool(r["ans_valid"]) for r in rows) / len(rows)))
    return {s: sorted(v) for s, v in found.items()}


def main():
    parser = argparse.ArgumentParser(description="What the starter learns from environments, as a table.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="guess, calculator; without one: both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs-dir")
    ours, more = sys.argv[1:], []
    if "--" in ours:
        ours, more = ours[:ours.index("--")], ours[ours.index("--") + 1:]
    a = parser.parse_args(ours)
    if not set(a.tasks) <= set(TASKS):
        parser.error(f"there are {' and '.join(TASKS)}")
    rollcall = os.environ.get("ROLLCALL", os.path.join(ROOT, "build", "release", "rollcall"))
    runs = a.runs_dir or tempfile.mkdtemp(prefix="rollcall-environments-")
    data_write()
    print("| environment | sampled | greedy | steps | seconds |\n|---|---|---|---|---|", flush=True)
    worst = 1.0
    for task in a.tasks or TASKS:
        began = time.monotonic()
        run = os.path.join(runs, task)
        done = subprocess.run([rollcall, "train", os.path.join(ROOT, "examples", "environments", f"{task}.yaml"), "--batch", "--runs-dir", runs,
                               "--name", task, "--seed", str(a.seed), *more], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit(f"learning.py: the run '{run}' ended with status {done.returncode}")
        score = means(run)
        first, last = {s: score[s][0][1] for s in SETS}, {s: score[s][-1][1] for s in SETS}
        print(f"| {task} | " + " | ".join(f"{100 * first[s]:.1f} → {100 * last[s]:.1f} %" for s in SETS)
              + f" | {score['sampled'][-1][0]} | {time.monotonic() - began:.0f} |", flush=True)
        worst = min(worst, last["sampled"] - first["sampled"])
    print(f"\nruns are in {runs}")
    sys.exit(0 if worst >= 0.2 else 1)


if __name__ == "__main__":
    main()
