#!/usr/bin/python3
"""Prints the table of what the starter learns: start and end of each run, sampled at temperature 1 and greedily, on the held-out
problems; for seeds 1 to 5, each with a control whose rewards are shuffled inside each batch (which must not learn).

    examples/learning.py [--seeds 1,2,3] [--algos GRPO,DAPO,RLOO,REINFORCE_PPB] [--presets P,Q | --presets all] [--no-control]
                         [--runs-dir D] [-- MORE...]

With --presets the runs are those of the presets, instead of algorithms. The starter's sizes, lengths, learning rate and penalty of
examples/arithmetic.yaml stay; everything else is the preset's.
Arguments after -- go to every 'rollcall train'. Needs examples/quickstart.sh --prepare first. Exits 1 when fewer than 4 of 5
runs (of fewer runs: not all) end at 80 % sampled and 85 % greedy, or when the controls gain more than 5 points on average: one
of them is a random walk, which says little by itself.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SETS = ("sampled", "greedy")
PRESETS = ("open_instruct", "atropos", "dr_grpo", "gspo", "cispo")


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


def run_file(runs, for_preset):
    """The starter's run file; for a preset one without the settings that are the preset's to make."""
    path = os.path.join(ROOT, "examples", "arithmetic.yaml")
    if not for_preset:
        return path
    with open(path, encoding="utf-8") as f:
        kept = [line.replace("../", ROOT + "/") for line in f
                if not re.match("(algo|loss_variation|weight_decay|adam_beta2|lr_schedule|lr_min_ratio):", line)]
    path = os.path.join(runs, "preset.yaml")
    os.makedirs(runs, exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(kept)
    return path


def train(rollcall, runs, name, args, file):
    began, metrics, last = time.monotonic(), [], None
    command = [rollcall, "train", file, "--batch", "--format", "jsonl",
               "--runs-dir", runs, "--name", name] + args
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            event = json.loads(line)
            if event["event"] == "step":
                metrics.append(event["metrics"])
            last = event
    if p.returncode or not last or last["event"] != "finished":
        sys.exit(f"learning.py: run '{name}' ended with status {p.returncode}: {last}")
    return means(os.path.join(runs, name)), metrics, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description="What the starter learns, as a table.")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--algos", default="GRPO")
    parser.add_argument("--presets", default="")
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--runs-dir")
    parser.add_argument("more", nargs="*")
    a = parser.parse_args()
    rollcall = os.environ.get("ROLLCALL", os.path.join(ROOT, "build", "release", "rollcall"))
    runs = a.runs_dir or tempfile.mkdtemp(prefix="rollcall-learning-")
    kind, names = ("--preset", a.presets) if a.presets else ("--algo", a.algos)
    jobs = [(name, int(seed), []) for name in (PRESETS if names == "all" else names.split(",")) for seed in a.seeds.split(",")]
    if not a.no_control:
        jobs += [(jobs[0][0], int(seed), ["--control-shuffle-rewards", "true"]) for seed in a.seeds.split(",")]
    print("| run | seed | sampled | greedy | response length | trainer s | whole s |\n|---|---|---|---|---|---|---|", flush=True)
    good, control_gains = 0, []
    for algo, seed, extra in jobs:
        name = f"{algo}-{seed}{'-control' if extra else ''}"
        args = [kind, algo, "--seed", str(seed)] + extra + a.more
        if algo != "GRPO" and kind == "--algo":    # only the algorithm's form differs: the presets' penalties would be another experiment
            args += ["--kl-coeff", "0"]
        score, metrics, seconds = train(rollcall, runs, name, args, run_file(runs, kind == "--preset"))
        first, end = {s: score[s][0][1] for s in SETS}, {s: score[s][-1][1] for s in SETS}
        lengths = [m["metrics/response_length"] for m in metrics if "metrics/response_length" in m]
        busy = sum(m.get("time/step_s", 0) for m in metrics)
        print(f"| {algo}{', rewards shuffled' if extra else ''} | {seed} | "
              + " | ".join(f"{100 * first[s]:.1f} → {100 * end[s]:.1f} %" for s in SETS)
              + f" | {lengths[0]:.1f} → {lengths[-1]:.1f} | {busy:.0f} | {seconds:.0f} |", flush=True)
        if extra:
            control_gains.append(end["sampled"] - first["sampled"])
        else:
            good += end["sampled"] >= 0.80 and end["greedy"] >= 0.85
    runs_wanted = sum(not extra for _, _, extra in jobs)
    print(f"\n{good} of {runs_wanted} runs reached 80 % sampled and 85 % greedy; runs are in {runs}")
    control_gain = sum(control_gains) / len(control_gains) if control_gains else 0
    if control_gains:
        print(f"{len(control_gains)} controls gained {100 * control_gain:+.1f} points on average "
              f"({100 * min(control_gains):+.1f} to {100 * max(control_gains):+.1f})")
    sys.exit(0 if good >= runs_wanted - runs_wanted // 5 and control_gain <= 0.05 else 1)


if __name__ == "__main__":
    main()
