#!/usr/bin/env python3
"""Tensor and pipeline parallelism: decoding and optimizer steps on one GPU and on several, and whole runs whose trainer and producer work on
one and on two. A hash of all tokens and log-probs, one of the weights after some steps, and the sha256 of the weights that a run ends with
must be one and the same wherever the sums have as many parts.

    tests/gpu/teams.py [--work DIR] [--runs CASE,...] [--shapes NAME[:BATCH],...] [--batches 16,256] [--train NAME:TOKENS:MICRO,...]
                       [--pipelines NAME:TOKENS:MICRO,...] [--apart]
    on CPUs, to try this script: --runs starter --shapes starter --train starter:2048:1024 --pipelines starter:8192:1024

One JSON line for each measurement, then a table. Exits 1 when bytes differ or a measurement fails. ROLLCALL names the program.
"""
import argparse, os, shutil
from ranks import MORE, n_gpu, sha256
from step import CASES, Table, bench_try, medians, whole_run

LAYOUTS = ((1, 1), (1, 4), (2, 4), (4, 4))    # devices, parts of sums; the price of the parts is the second against the first


def decode(shape, device, batch, n, parts):
    return bench_try("decode", "--shape", shape, "--device", device, "--batch", batch, "--prompt", 128, "--new", 128, "--rounds", 3, "--threads", 1,
                     "--ptp", n, "--sum-parts", parts)


def train(shape, device, tokens, micro, parts, tp=1, pp=1):
    return bench_try("train", "--shape", shape, "--device", device, "--seq", 1024, "--tokens", tokens, "--micro", micro, "--rounds", 3, "--threads", 1,
                     "--tp", tp, "--pp", pp, "--sum-parts", parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="/tmp/rollcall-teams")
    parser.add_argument("--runs", default="0.5B")
    parser.add_argument("--shapes", default="Qwen2.5-0.5B,Qwen2.5-7B,Qwen2.5-32B:64")
    parser.add_argument("--batches", default="16,256")
    parser.add_argument("--train", default="Qwen2.5-0.5B:16384:8192,Qwen2.5-7B:8192:2048")
    parser.add_argument("--pipelines", default="Qwen2.5-0.5B:32768:2048,Qwen2.5-7B:16384:1024")
    parser.add_argument("--apart", action="store_true", help="of whole runs only those whose producer has devices of its own")
    a = parser.parse_args()
    os.makedirs(a.work, exist_ok=True)
    table = Table()
    kind, most = ("cpu", 2) if "starter" in a.shapes + a.runs + a.pipelines else ("cuda", n_gpu())
    for case in filter(None, a.shapes.split(",")):
        shape, *own = case.split(":")
        for batch in map(int, own or a.batches.split(",")):
            alone = same = None
            for n, parts in LAYOUTS:
                if n > most or (n == 4 and shape.endswith("0.5B")):    # 14 heads
                    continue
                r, said = decode(shape, f"{kind}:0", batch, n, parts), ""
                if "hash" in r:
                    alone = alone or r
                    same = same or (r["hash"] if parts == 4 else None)
                    r["check"] = r["check"] and (parts == 1 or r["hash"] == same)
                    said = (f"step {r['step_us']:9.1f} us  times as fast {alone['step_us'] / r['step_us']:.3f}"
                            f"  prefill {r['prefill_tok_per_s']:8.0f} tok/s")
                table.put(f"{shape:14}{batch:4} samples {n} x  {parts} parts", r, said)
    for case in filter(None, a.train.split(",")):
        shape, tokens, micro = case.split(":")
        alone = same = None
        for n, parts in LAYOUTS:
            if n > most or (n == 4 and shape.endswith("0.5B")):    # 2 heads of keys and values
                continue
            r, said = train(shape, f"{kind}:0", tokens, micro, parts, tp=n), ""
            if "hash" in r:
                alone = alone or r
                same = same or (r["hash"] if parts == 4 else None)
                r["check"] = r["check"] and (parts == 1 or r["hash"] == same)
                said = (f"{r['tok_per_s']:8} tok/s  times as fast {alone['ms'] / r['ms']:.3f}"
                        f"  {r['memory_gb']:7.2f} of {r['planned_gb']:7.2f} GB")
            table.put(f"{shape:14}{tokens:>6} tokens in {micro:>5}  {n} x  {parts} parts", r, said)
    for case in filter(None, a.pipelines.split(",")):
        shape, tokens, micro = case.split(":")
        alone = {}    # by parts of sums
        for pp, tp, parts in ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 1, 4), (2, 2, 4)):
            n = pp * tp
            if n > most and not (kind == "cpu" and n == 4 and tp == 2) or (parts == 4 and most < 4 and kind != "cpu"):
                continue
            r, said = train(shape, f"{kind}:0", tokens, micro, parts, tp, pp), ""
            if "hash" in r:
                alone.setdefault(parts, r)
                r["check"] = r["check"] and r["hash"] == alone[parts]["hash"]
                m = int(tokens) // int(micro)
                said = (f"{r['tok_per_s']:8} tok/s  times as fast {alone[parts]['ms'] / r['ms']:.3f} of {n * m / (m + pp - 1):.3f}"
                        f"  {r['memory_gb']:7.2f} of {r['planned_gb']:7.2f} GB of the first")
            table.put(f"{shape:14}{tokens:>6} tokens in {micro:>5}  {pp} stages of {tp}, {parts} parts", r, said)
    for name in filter(None, a.runs.split(",")):
        c, first = MORE.get(name) or CASES[name], {}    # by n_behind
        # trainers; stages of each, and devices of each stage; devices of a producer; the last ones on four devices, and by bytes alone
        layouts = [(1, 1, 1, 1, "auto"), (1, 1, 1, 2, "auto"), (1, 1, 2, 1, "auto"), (1, 1, 2, 2, "auto"), (1, 2, 1, 1, "auto"), (1, 2, 1, 2, "auto")]
        apart = []
        if kind == "cpu" or most >= 4:
            two = [(2, pp, tp, 2, zero) for pp, tp in ((1, 2), (2, 1)) for zero in "0123"]
            layouts += two + [(1, 2, 2, 1, "auto"), (1, 2, 2, 2, "auto")] + [(*layout, "tcp" if kind == "cpu" else "nccl") for layout in two]
            # on other devices than the trainer's, which gives its weights so, kept for a step or not; the first of each with whole ones
            apart = [(pp, tp, m, weights, behind) for behind in (0, 1) for pp, tp, m in ((1, 1, 1), (1, 2, 1), (2, 1, 2))
                     for weights in (("copy", "nccl", "files") if pp * tp > 1 else ("copy",))]
        runs = [] if a.apart else [(t, pp, tp, m, zero, "".join(way) or "auto", None) for t, pp, tp, m, zero, *way in layouts]
        runs += [(1, pp, tp, m, "auto", "auto", (weights, behind)) for pp, tp, m, weights, behind in apart]
        for t, pp, tp, m, zero, way, given in runs:
            weights, behind = given or ("auto", 0)
            devices = ",".join(f"{kind}:{i}" for i in range(pp * tp + m if given else t * max(pp * tp, m)))
            more = ["--placement", "apart", "--weights", weights, "--n_behind", str(behind)] if given else ["--collective", way]
            path, step, _ = whole_run(c, devices, a.work, f"teams-{name}-{t}-{pp}-{tp}-{m}-{zero}-{way}-{weights}-{behind}-{os.getpid()}", 3,
                                      ["-pp", str(pp), "-tp", str(tp), "-ptp", str(m), "--sum_parts", "4", "-zero", zero, *more], workers=t)
            got = medians(step, ("generate_s", "train_s", "publish_s", "step_s"))
            got["hash"] = sha256(os.path.join(path, "checkpoints", "step-000003", "model.safetensors"))
            got["sampler_trainer_diff"] = max(m["train/sampler_trainer_diff"] for m in step)
            shutil.rmtree(path)
            same = first.setdefault(behind, got)
            got["check"] = got["hash"] == same["hash"] and got["sampler_trainer_diff"] == 0
            table.put(f"{name:14}run, -t {t} -i {t} -pp {pp} -tp {tp} -ptp {m} " + (f"apart, {weights}, n_behind {behind}" if given else f"-zero {zero} {way}"),
                      dict(bench="teams", case=name, trainers=t, stages=pp, stage_devices=tp, zero_stage=zero, collective=way, producer_devices=m,
                           apart=bool(given), weights=weights, n_behind=behind, **got),
                      f"step {got['step_s']:8.3f} s  generate {got['generate_s'] or 0:8.3f}  train {got['train_s']:8.3f}")
    table.end()


main()
