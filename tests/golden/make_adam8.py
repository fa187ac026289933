#!/usr/bin/env python3
"""Makes rl/adam8.safetensors: AdamW with block-wise 8-bit moments in PyTorch, written here from arXiv 2110.02861 and the tables of
bitsandbytes, with the two differences that kernels/adam8.h names.

    python3 -m venv V; V/bin/pip install torch safetensors numpy; V/bin/python tests/golden/make_adam8.py

start (N), grad (STEPS, N) and after each step master (STEPS, N), moment1 and moment2 (STEPS, N) as they are read back. The gradients span
many orders of magnitude, and some are 0, so that every part of the tables is used.
"""
import os
import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N, STEPS, BLOCK = 1000, 6, 128
LR, B1, B2, EPS, DECAY = 1e-2, 0.9, 0.95, 1e-8, 0.1


def table(signed):
    values = [0.0, 1.0]
    for i in range(7):
        borders = torch.linspace(0.1, 1, (2 ** i if signed else 2 ** (i + 1)) + 1, dtype=torch.float64)
        means = (borders[:-1] + borders[1:]) / 2 * 10.0 ** (i - 6)
        values += means.tolist() + ((-means).tolist() if signed else [])
    values = sorted(values)
    if signed:
        values.remove(max(v for v in values if v < 0))
        values = [-1.0] + values
    assert len(values) == 256
    return torch.tensor(values, dtype=torch.float64).float()


def stored(x, t, never_zero):
    """x as it is read back: each block by its largest absolute value and the nearest value of the table."""
    out = torch.empty_like(x)
    for at in range(0, len(x), BLOCK):
        part = x[at:at + BLOCK]
        most = part.abs().max()
        code = ((part / most).unsqueeze(1) - t.unsqueeze(0)).abs().argmin(1) if most > 0 else torch.full((len(part),), int((t == 0).nonzero()))
        if never_zero:
            code = torch.where((part > 0) & (code == 0), torch.ones_like(code), code)
        out[at:at + BLOCK] = most * t[code]
    return out


def main():
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(N, generator=gen)
    size = 10.0 ** (-8 * torch.rand(N, generator=gen))
    grad = torch.randn(STEPS, N, generator=gen) * size
    grad[:, ::17] = 0
    out = {"start": x.clone(), "grad": grad, "master": [], "moment1": [], "moment2": []}
    m, v, signed, unsigned = torch.zeros(N), torch.zeros(N), table(True), table(False)
    for k in range(1, STEPS + 1):
        g = grad[k - 1]
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        x = x * (1 - LR * DECAY) - LR * (m / (1 - B1 ** k)) / ((v / (1 - B2 ** k)).sqrt() + EPS)
        m, v = stored(m, signed, False), stored(v, unsigned, True)
        for name, value in (("master", x), ("moment1", m), ("moment2", v)):
            out[name].append(value.clone())
    save_file({k: torch.stack(v) if isinstance(v, list) else v for k, v in out.items()}, os.path.join(HERE, "rl", "adam8.safetensors"))


if __name__ == "__main__":
    main()
