#!/usr/bin/env python3
"""What 'fill_gap' gains: whole runs of the 1.5B with it off and on, with n_behind 1 and 2. One GPU trains and the other samples answers of
unlike lengths, as random weights end them.

    tests/gpu/gap.py [--work DIR] [--shape Qwen2.5-1.5B] [--new 1536] [--steps 7] [--devices cuda:0,cuda:1]

A line for each run: means of the steps after the first two. Exits 1 when two runs of one n_behind have other losses. ROLLCALL names the program.
"""
import argparse, os, shutil, statistics, sys
import step

SHOWN = ("time/step_s", "time/train_s", "time/generate_s", "rollout/idle_share", "rollout/gap_share", "perf/rollout_tok_per_s")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--work", default="/tmp/rollcall-gap")
    p.add_argument("--shape", default="Qwen2.5-1.5B")
    p.add_argument("--new", type=int, default=1536)
    p.add_argument("--steps", type=int, default=7)
    p.add_argument("--devices", default="cuda:0,cuda:1")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    c = dict(shape=a.shape, prompts=32, group=8, new=a.new, budget=16384)
    made = step.model_make(a.work, a.shape, step.data_make(a.work))
    step.model_make = lambda *_: made    # the same for all runs
    differ = False
    print("n_behind  fill_gap" + "".join(f"{m.split('/')[1]:>18}" for m in SHOWN))
    for behind in (1, 2):
        losses = []
        for fill in ("off", "on"):
            more = ["--placement", "apart", "--ignore_eos", "false", "--fill_gap", fill, "--n_behind", str(behind), "--save_at_end", "false",
                    "--speculate", "off"]
            path, steps, _ = step.whole_run(c, a.devices, a.work, f"gap-{behind}-{fill}-{os.getpid()}", a.steps, more, workers=1)
            shutil.rmtree(path)
            losses.append([s["train/loss"] for s in steps])
            late = steps[2:]
            print(f"{behind:8}{fill:>10}" + "".join(f"{statistics.mean(s[m] for s in late) if m in late[-1] else 0:18.3f}" for m in SHOWN), flush=True)
        differ |= losses[0] != losses[1]
    sys.exit("the losses differ" if differ else 0)


if __name__ == "__main__":
    main()
