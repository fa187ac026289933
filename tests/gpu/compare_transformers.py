#!/usr/bin/env python3
"""Logits and gradients of our bf16 engine and of transformers' bf16, both against transformers in fp32, on the same weights,
tokens and card. Random bf16 weights of a real shape; the loss is the mean cross-entropy of random tokens.

    tests/gpu/compare_transformers.py --shape Qwen2.5-0.5B [--device cuda] [--rollcall PATH] [--dump PATH] [--len 512] [--n-seq 2]

Prints one JSON line: |difference| / |fp32| of the logits and of the whole gradient, ours and theirs, and exits 1 when ours is
the larger.
"""
import argparse, json, math, os, subprocess, sys, tempfile

import numpy, torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def call(*args):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"compare_transformers.py: {args[0]} ended with {p.returncode}: {p.stderr[-2000:]}")


def theirs(path, dtype, device, ids):
    """Logits and gradients by transformers, in fp32 on the host."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").to(device)
    logits = model(ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    loss.backward()
    grads = {n: p.grad.float().cpu() for n, p in model.named_parameters()}
    out = logits.detach().reshape(-1, logits.shape[-1]).cpu(), grads, loss.item()
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
    return out


def error(pairs):
    apart = norm = 0.0
    for got, want in pairs:
        apart += (got.double() - want.double()).square().sum().item()
        norm += want.double().square().sum().item()
    return math.sqrt(apart / norm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="Qwen2.5-0.5B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rollcall", default=os.path.join(ROOT, "build/release/rollcall"))
    parser.add_argument("--dump", default=os.path.join(ROOT, "build/release/tests/model_dump"))
    parser.add_argument("--len", type=int, default=512)
    parser.add_argument("--n-seq", type=int, default=2)
    a = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as work:
        model, tokens, dumped = (os.path.join(work, x) for x in ("model", "tokens", "ours.safetensors"))
        call(a.rollcall, "random-model", "--shape", a.shape, "--seed", 1, "--out", model)
        vocab = json.load(open(os.path.join(model, "config.json"), encoding="utf-8"))["vocab_size"]
        ids = numpy.random.default_rng(1).integers(0, vocab, (a.n_seq, a.len), dtype=numpy.int32)
        ids.tofile(tokens)
        call(a.dump, model, "cuda:0" if a.device == "cuda" else "cpu:0", "bfloat16", tokens, a.n_seq, dumped)
        on = torch.from_numpy(ids.astype(numpy.int64)).to(a.device)
        want, want_grad, want_loss = theirs(model, torch.float32, a.device, on)
        half, half_grad, half_loss = theirs(model, torch.bfloat16, a.device, on)
        with safe_open(dumped, framework="pt") as f:
            ours, our_loss = f.get_tensor("logits"), f.get_tensor("loss").item()
            names = [n for n in f.keys() if n not in ("logits", "loss")]
            if sorted(names) != sorted(want_grad):
                sys.exit(f"compare_transformers.py: tensors differ: {sorted(set(names) ^ set(want_grad))[:5]}")
            grads = {n: f.get_tensor(n) for n in names}
    r = {"bench": "compare", "model": a.shape, "device": a.device, "tokens": a.n_seq * a.len,
         "loss": [round(x, 6) for x in (want_loss, half_loss, our_loss)],
         "logits_ours": error([(ours, want)]), "logits_theirs": error([(half, want)]),
         "gradient_ours": error([(grads[n], want_grad[n]) for n in names]),
         "gradient_theirs": error([(half_grad[n], want_grad[n]) for n in names])}
    tensor = {n: error([(grads[n], want_grad[n])]) / max(error([(half_grad[n], want_grad[n])]), 1e-12) for n in names}
    worst = max(tensor, key=tensor.get)
    r["worst_tensor"], r["worst_tensor_ratio"] = worst, round(tensor[worst], 3)
    r["check"] = r["logits_ours"] <= r["logits_theirs"] and r["gradient_ours"] <= r["gradient_theirs"]
    print(json.dumps(r))
    sys.exit(not r["check"])


main()
