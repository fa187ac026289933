#!/usr/bin/python3
"""Prints how many samples the starter needs to learn from rewards, from a teacher, and from both, as the share of right answers on the
held-out problems, sampled at temperature 1, after each number of samples; means over the seeds.

    examples/distil.py [--seeds 1,2,3] [--steps 40] [--runs-dir D] [-- MORE...]

The teacher is the starter after examples/arithmetic.yaml. The runs are that file's with steps of 4 prompts and 2 answers, where rewards say
little: a pair of answers that are both right or both wrong says nothing. Arguments after -- go to every 'rollcall train'. Needs
examples/quickstart.sh --prepare first. Exits 1 unless the teacher's mean over all evaluations but the first is above that of rewards.
"""
import argparse
import os
import sys
import tempfile
import learning

EVERY = 5    # steps
KINDS = {"rewards": [], "a teacher": ["--reward-coeff", "0"], "both": []}


def main():
    parser = argparse.ArgumentParser(description="What a teacher adds, as a table.")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs-dir")
    parser.add_argument("more", nargs="*")
    a = parser.parse_args()
    rollcall = os.environ.get("ROLLCALL", os.path.join(learning.ROOT, "build", "release", "rollcall"))
    runs = a.runs_dir or tempfile.mkdtemp(prefix="rollcall-distil-")
    file, seeds = learning.run_file(runs, False), a.seeds.split(",")
    taught, _, _ = learning.train(rollcall, runs, "teacher", ["--seed", "9", *a.more], file)
    checkpoints = os.path.join(runs, "teacher", "checkpoints")
    teacher = os.path.join(checkpoints, max(os.listdir(checkpoints)))
    print(f"the teacher has {100 * taught['sampled'][-1][1]:.1f} % right\n", flush=True)
    size = ["--inference-batch-size", "4", "--inference-microbatch-size", "4", "--train-batch-size", "4", "--num-generations", "2"]
    means = {}
    for kind, extra in KINDS.items():
        with_teacher = ["--teacher", teacher] if kind != "rewards" else []
        scores = [learning.train(rollcall, runs, f"{kind.replace(' ', '-')}-{seed}",
                                 ["--seed", seed, "--max-steps", str(a.steps), "--eval-interval", str(EVERY), *size, *with_teacher, *extra, *a.more],
                                 file)[0]["sampled"] for seed in seeds]
        if not means:
            steps = [step for step, _ in scores[0]]
            print("| samples | " + " | ".join(str(8 * step) for step in steps) + " |\n|---" + "|---" * len(steps) + "|", flush=True)
        means[kind] = [sum(s[k][1] for s in scores) / len(scores) for k in range(len(steps))]
        print(f"| {kind} | " + " | ".join(f"{100 * share:.1f}" for share in means[kind]) + " |", flush=True)
    area = {kind: sum(shares[1:]) / len(shares[1:]) for kind, shares in means.items()}
    print("\nmeans: " + ", ".join(f"{kind} {100 * v:.1f} %" for kind, v in area.items()) + f"; runs are in {runs}")
    sys.exit(0 if area["a teacher"] > area["rewards"] else 1)


if __name__ == "__main__":
    main()
