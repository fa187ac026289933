#!/usr/bin/env python3
"""attention.py: our attention against cuDNN's (through PyTorch) on the same card, and the ratio of their speeds.

ROLLCALL: the executable. Prints a line per shape and length; fails below the given shares of cuDNN's speed.
"""
import argparse
import json
import os
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {"Qwen2.5-0.5B": (14, 2, 64), "Qwen2.5-1.5B": (12, 2, 128), "Qwen2.5-7B": (28, 4, 128)}
LENGTHS = ((8, 2048), (2, 8192), (1, 32768))


def median_ms(call, n=15):
    for _ in range(3):
        call()
    took = []
    for _ in range(n):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end))
    return sorted(took)[n // 2]


def cudnn(heads, n_seq, length):
    """Forward and backward in TFLOP/s of the causal half, as bench attention counts them."""
    n_q, n_kv, hd = heads
    draw = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    q = torch.randn(n_seq, n_q, length, hd, **draw)
    k, v = (torch.randn(n_seq, n_kv, length, hd, **draw) for _ in range(2))
    flops = 2 * n_seq * length * (length + 1) * n_q * hd
    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        with torch.no_grad():
            forward = median_ms(attend)
        out = attend()
        grad = torch.randn_like(out)
        backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
    return {"forward": flops / forward * 1e-9, "backward": 2.5 * flops / backward * 1e-9}


def ours(shape, n_seq, length):
    lines = subprocess.run(
        [os.environ["ROLLCALL"], "bench", "attention", "--device", "cuda:0", "--shape", shape, "--seq", str(length), "--n-seq",
         str(n_seq), "--batch", "1", "--context", "64"], check=True, capture_output=True, text=True, timeout=120).stdout
    rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert all(row["check"] for row in rows), rows
    return {row["what"]: row["tflops"] for row in rows if "tflops" in row}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forward", type=float, default=0.95, help="least share of cuDNN's speed, head size 128 (0.95)")
    parser.add_argument("--backward", type=float, default=0.90, help="the same for the backward pass (0.90)")
    bars = vars(parser.parse_args())
    missed = []
    for shape, heads in SHAPES.items():
        for n_seq, length in LENGTHS:
            mine, theirs = ours(shape, n_seq, length), cudnn(heads, n_seq, length)
            for what, bar in bars.items():
                ratio = mine[what] / theirs[what]
                print(json.dumps({"attention": shape, "what": what, "n_seq": n_seq, "len": length, "tflops": round(mine[what], 1),
                                  "cudnn_tflops": round(theirs[what], 1), "ratio": round(ratio, 3)}), flush=True)
                if heads[2] == 128 and length <= 8192 and ratio < bar:
                    missed.append(f"{shape}, {what} of {n_seq} x {length}: {ratio:.2f} of cuDNN, less than {bar}")
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
