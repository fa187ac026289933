#!/usr/bin/env python3
"""The same whole runs on one, two and four GPUs (as many as there are), on the most also with zero_stage 3, and with the stages 1 to 3
over bytes alone (NCCL, on CPUs tcp): how long a step takes, and the sha256 of the weights they end with, which must be one and the same.

    tests/gpu/ranks.py [--work DIR] [--steps 3] [--counts 1,4] [--apart 1,2,3] [CASE...]
cases: 0.5B 1.5B (default: both) 0.5B-short; starter, on CPUs, to try this script. NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1: over sockets

One JSON line for each run, then a table. Exits 1 when two layouts end in other bytes. ROLLCALL names the program.
"""
import argparse, hashlib, json, os, shutil, subprocess, sys
from step import CASES, medians, whole_run

MORE = {"0.5B": dict(shape="Qwen2.5-0.5B", prompts=64, group=8, new=256, budget=8192),
        "0.5B-short": dict(shape="Qwen2.5-0.5B", prompts=16, group=8, new=48, budget=4096)}    # for bytes


def n_gpu():
    if "RC_CUDA_CARDS" in os.environ:    # several names for a card; only the bytes mean something then
        return int(os.environ["RC_CUDA_CARDS"])
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return 0


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 24):
            h.update(piece)
    return h.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="/tmp/rollcall-ranks")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--counts", help="numbers of GPUs to try (default: 1, 2, 4 and 8, as far as there are)")
    parser.add_argument("--apart", default="1,2,3", help="zero_stages to try over bytes alone; '': none (default: 1 to 3)")
    parser.add_argument("case", nargs="*")
    a = parser.parse_args()
    os.makedirs(a.work, exist_ok=True)
    table, differ = [], False
    for name in a.case or ["0.5B", "1.5B"]:
        c = MORE.get(name) or CASES[name]
        kind, most = ("cpu", 4) if name == "starter" else ("cuda", n_gpu())
        first = None
        counts = [int(n) for n in a.counts.split(",")] if a.counts else [n for n in (1, 2, 4, 8) if n <= most]
        apart = "nccl" if kind == "cuda" else "tcp"
        layouts = [(n, "auto", "auto") for n in counts]
        for n in counts[-1:]:
            layouts += [(n, "3", "auto")] * (n > 1) + [(n, zero, apart) for zero in a.apart.split(",") if zero and n > 1]
        for n, zero, way in layouts:
            path, step, _ = whole_run(c, ",".join(f"{kind}:{i}" for i in range(n)), a.work, f"ranks-{name}-{n}-{zero}-{way}-{os.getpid()}",
                                      a.steps, ["--zero_stage", zero, "--collective", way])
            got = medians(step, ("generate_s", "train_s", "ranks_s", "publish_s", "step_s"))
            got["sha256"] = sha256(os.path.join(path, "checkpoints", f"step-{a.steps:06d}", "model.safetensors"))
            got["sampler_trainer_diff"] = max(m["train/sampler_trainer_diff"] for m in step)
            shutil.rmtree(path)
            first = first or got
            got["train_of_n"] = round(first["train_s"] / got["train_s"] / n, 4)    # 1: n devices train n times as fast
            got["step_of_n"] = round(first["step_s"] / got["step_s"] / n, 4)
            same = got["sha256"] == first["sha256"] and got["sampler_trainer_diff"] == 0
            differ |= not same
            print(json.dumps(dict(bench="ranks", case=name, ranks=n, zero_stage=zero, collective=way, prompts=c["prompts"], group=c["group"], new=c["new"], **got, check=same)), flush=True)
            table.append(f"{name:8}{n:2} x  zero {zero:4} by {way:4}  step {got['step_s']:8.3f} s  generate {got['generate_s']:8.3f}  train {got['train_s']:8.3f}"
                         f"  waited {got['ranks_s'] or 0:7.3f}  train / (N x one) {got['train_of_n']:.3f}  {got['sha256'][:16]}"
                         f"  {'same bytes' if same else 'OTHER BYTES'}")
    print("\n".join(table))
    sys.exit(differ)


if __name__ == "__main__":
    main()
