#!/usr/bin/env python3
"""What 'fill_gap' gains: whole runs with it on and off by turns, on the same samples.

    tests/measure_gap.py [--devices cpu:0,cpu:1] [--model DIR --dataset FILE] [--width 512] [--steps 10] [--pairs 3] [NAME=VALUE ...]

The first device trains and the others sample, with n_behind 1. Without --model the weights are random, of 4 layers, and long and short answers
mix. Printed are means over the steps after the first two: seconds a step, of training and of generating, the share of these in which fewer than
half of the samples ran, and in which two versions did. Every pair must end in the same weights. NAME=VALUE is any setting."""
import argparse
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "integration"))
from run_tools import Run, Task

SHOWN = ("time/step_s", "time/train_s", "time/generate_s", "rollout/idle_share", "rollout/gap_share")


def measure(task, name, settings, steps):
    """The means of one run, and the hash of its last weights."""
    run = Run(task, name, task.run_file(f"{name}.yaml", **settings), ["--max-steps", str(steps)])
    try:
        code, last = run.wait()
        if code != 0 or last.get("event") != "finished":
            sys.exit(run.logs())
        told = [line["metrics"] for line in run.told("step")][2:]
        adapter = os.path.exists(os.path.join(run.dir, f"checkpoints/step-{steps:06d}/adapter_model.safetensors"))
        return ({m: statistics.mean(t[m] for t in told if m in t) if any(m in t for t in told) else 0.0 for m in SHOWN},
                run.weights(steps, *["adapter_model.safetensors"] * adapter))
    finally:
        run.kill()


def show(name, means):
    print(f"{name:8}" + "".join(f"{means[m]:12.3f}" for m in SHOWN), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--devices", default="cpu:0,cpu:1")
    p.add_argument("--model")
    p.add_argument("--dataset")
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("setting", nargs="*")
    a = p.parse_args()
    shape = {} if a.model else dict(d=a.width, ff=2 * a.width, layers=4, heads=8, kv_heads=4, scale=2.4 / a.width ** 0.5, max_pos=4096)
    task = Task(**shape)
    settings = dict(devices=a.devices, placement="apart", num_trainers=1, num_inferencer=a.devices.count(","), n_behind=1, max_new_tokens=1000,
                    inference_batch_size=8, inference_microbatch_size=4, train_batch_size=8 * a.devices.count(","), num_generations=2,
                    learning_rate=1e-6, speculate="off", save_interval=a.steps, max_prompt_tokens=512)
    settings.update({k: v for k, v in (("model", a.model), ("dataset", a.dataset)) if v})
    settings.update(s.split("=", 1) for s in a.setting)
    all_means = {"off": [], "on": []}
    print(f"{'fill_gap':8}" + "".join(f"{m.split('/')[1]:>12}" for m in SHOWN))
    try:
        for pair in range(a.pairs):
            ended = set()
            for fill in ("off", "on") if pair % 2 == 0 else ("on", "off"):    # so that a machine that gets busier favours neither
                means, weights = measure(task, f"{fill}-{pair}", {**settings, "fill_gap": fill}, a.steps)
                show(fill, means)
                all_means[fill].append(means)
                ended.add(weights)
            if len(ended) != 1:
                sys.exit("the runs have ended in different weights")
    finally:
        task.close()
    for fill, means in all_means.items():
        show(f"{fill} mean", {m: statistics.mean(one[m] for one in means) for m in SHOWN})


if __name__ == "__main__":
    main()
