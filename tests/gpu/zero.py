#!/usr/bin/env python3
"""Training steps of real shapes, shared by all GPUs at each zero_stage, against one GPU: tokens/s, what of a step was spent waiting,
memory, and the hash of the weights after the last step, which must be one and the same for a shape.

    tests/gpu/zero.py [CASE...]      cases: 0.5B 1.5B 7B 7B-large 14B 32B (default: all); starter, on CPUs, to try this script

One JSON line for each measurement, then a table. A case without a line for one GPU has no room there. Exits 1 when bytes differ or a
measurement fails. ROLLCALL names the program.
"""
import argparse
from step import Table, bench_try
from ranks import n_gpu

CASES = {    # tokens are those of a step of one or two GPUs, and of more if one is among them; devices: how many, and at which zero_stage
    "0.5B": dict(shape="Qwen2.5-0.5B", seq=512, tokens=65536, micro=8192, rounds=8,
                 layouts=((1, 0), (0, 1), (0, 2), (0, 3), (0, 0), (0, 0, "local"), (0, 0, "nccl"))),
    "1.5B": dict(shape="Qwen2.5-1.5B", seq=1024, tokens=131072, micro=16384, rounds=3, layouts=((1, 0), (0, 2), (0, 3))),
    "7B": dict(shape="Qwen2.5-7B", seq=2048, tokens=16384, micro=2048, rounds=3, layouts=((1, 0), (0, 2), (0, 3))),
    "7B-large": dict(shape="Qwen2.5-7B", seq=2048, tokens=65536, micro=8192, rounds=2, layouts=((0, 2), (0, 3))),
    "14B": dict(shape="Qwen2.5-14B", seq=2048, tokens=32768, micro=4096, rounds=2, layouts=((0, 3),), more=["--recompute-full"]),
    "32B": dict(shape="Qwen2.5-32B", seq=2048, tokens=32768, micro=8192, rounds=1, layouts=((0, 3),), more=["--recompute-full", "--host-share", 0.3]),
    "starter": dict(shape="starter", seq=64, tokens=2048, micro=256, rounds=2, layouts=((1, 0), (0, 1), (0, 2), (0, 3), (0, 0, "local"), (0, 0, "tcp"))),
}


def measure(c, n, devices, zero, way):
    alone = any(layout[0] == 1 for layout in c["layouts"])    # then the same batch on any number
    return bench_try("ranks", "--shape", c["shape"], "--devices", devices, "--zero", zero, "--collective", way, "--seq", c["seq"],
                     "--tokens", c["tokens"] * (1 if alone else max(1, n // 2)), "--micro", c["micro"], "--rounds", c["rounds"], *c.get("more", []))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*")
    a = parser.parse_args()
    table = Table()
    for name in a.case or [name for name in CASES if name != "starter"]:
        c = CASES[name]
        kind, most = ("cpu", 2) if name == "starter" else ("cuda", n_gpu())
        if name == "32B" and most < 4:    # 18 bytes a parameter
            continue
        alone = first = None
        for n, zero, *way in c["layouts"]:
            n, way = n or most, way[0] if way else "ipc"
            if way == "local" and n > 2 and kind == "cuda":    # a minute, for what two show
                continue
            r, said = measure(c, n, ",".join(f"{kind}:{i}" for i in range(n)), zero, way), ""
            r["case"] = name
            if "hash" in r:
                first = first or r
                alone = r if n == 1 else alone
                r["check"] = r["check"] and r["hash"] == first["hash"]
                of_n = f"{r['tok_per_s'] / alone['tok_per_s'] / n:6.3f}" if alone else "     -"
                said = (f"{r['tok_per_s']:8.0f} tok/s  / (N x one) {of_n}  exposed {100 * r['exposed']:5.2f} %"
                        f"  idle {r['idle_ms']:7.2f} ms  reduce {r['reduce_ms']:7.2f}  gather {r['gather_ms']:7.2f}  sent"
                        f" {r['sent_gb']:7.2f} GB  memory {r['memory_gb']:7.2f} / planned {r['planned_gb']:7.2f} GB")
            table.put(f"{name:9}{n:2} x  zero {zero}  {way:5}", r, said)
    table.end()


main()
