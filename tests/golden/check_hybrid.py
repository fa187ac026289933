#!/usr/bin/env python3
"""Development check of Qwen3.5's hybrids: log-probs against the formulas in fp64, and greedy tokens against transformers.

    V/bin/python tests/golden/check_hybrid.py build/release/rollcall DIR...     (V: see make_models.py; DIR: fp32 weights, flat names)

For each DIR it prints the largest difference of log-probs of random sequences from numpy's in fp64, which fails above 1e-5 of the largest
logit, and compares 64 greedy tokens with those of the class. The class computes prompts by chunks and further tokens one by one, which differ
by 4e-5 of the largest logit, so where the best two logits are nearer than that either token is right.
"""
import json
import os
import subprocess
import sys
import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

sigmoid = lambda x: 1 / (1 + np.exp(-x))
silu = lambda x: x * sigmoid(x)


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def delta(g, h, c):
    """A gated delta net of rows h, by arXiv 2412.06464 eq. 10 and modeling_qwen3_5.py."""
    nk, nv, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    n = len(h)
    x = h @ g("in_proj_qkv.weight").T
    w = g("conv1d.weight")[:, 0]
    pad = np.concatenate([np.zeros((3, x.shape[1])), x])
    x = silu(sum(pad[t:t + n] * w[:, t] for t in range(4)))
    unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6)
    q = np.repeat(unit(x[:, :nk * dk].reshape(n, nk, dk)) * dk ** -0.5, nv // nk, 1)
    k = np.repeat(unit(x[:, nk * dk:2 * nk * dk].reshape(n, nk, dk)), nv // nk, 1)
    v = x[:, 2 * nk * dk:].reshape(n, nv, dv)
    beta = sigmoid(h @ g("in_proj_b.weight").T)
    decay = np.exp(-np.exp(g("A_log")) * np.log1p(np.exp(h @ g("in_proj_a.weight").T + g("dt_bias"))))
    s, o = np.zeros((nv, dk, dv)), np.zeros((n, nv, dv))
    for t in range(n):
        s *= decay[t][:, None, None]
        u = (v[t] - np.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
        s += np.einsum("hk,hv->hkv", k[t], u)
        o[t] = np.einsum("hkv,hk->hv", s, q[t])
    z = (h @ g("in_proj_z.weight").T).reshape(n, nv, dv)
    return (rms(o, g("norm.weight"), c["rms_norm_eps"]) * silu(z)).reshape(n, -1) @ g("out_proj.weight").T


def attention(g, h, c):
    heads, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    n, eps, rope = len(h), c["rms_norm_eps"], c["rope_parameters"]
    q, gate = np.split((h @ g("q_proj.weight").T).reshape(n, heads, 2 * hd), 2, -1)
    k, v = ((h @ g(p + "_proj.weight").T).reshape(n, kv, hd) for p in "kv")
    rot = int(hd * rope["partial_rotary_factor"])
    angle = np.arange(n)[:, None] * rope["rope_theta"] ** (-np.arange(0, rot, 2) / rot)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turn(x):
        a, b = x[..., :rot // 2], x[..., rot // 2:rot]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., rot:]], -1)

    q, k = turn(rms(q, 1 + g("q_norm.weight"), eps)), turn(rms(k, 1 + g("k_norm.weight"), eps))
    k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) * hd ** -0.5 + np.triu(np.full((n, n), -np.inf), 1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
    return (out * sigmoid(gate)).reshape(n, -1) @ g("o_proj.weight").T


def logits(w, c, ids):
    x, eps = w["model.embed_tokens.weight"][ids], c["rms_norm_eps"]
    for i, kind in enumerate(c["layer_types"]):
        g = lambda name: w[f"model.layers.{i}.{name}"]
        linear = kind == "linear_attention"
        h = rms(x, 1 + g("input_layernorm.weight"), eps)
        x = x + (delta if linear else attention)(lambda name: g(("linear_attn." if linear else "self_attn.") + name), h, c)
        h = rms(x, 1 + g("post_attention_layernorm.weight"), eps)
        x = x + (silu(h @ g("mlp.gate_proj.weight").T) * (h @ g("mlp.up_proj.weight").T)) @ g("mlp.down_proj.weight").T
    return rms(x, 1 + w["model.norm.weight"], eps) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def greedy(model, prompt, want):
    """Is each of want the best token after those before, or as good as the best?"""
    with torch.no_grad():
        out = model(torch.tensor([prompt + want])).logits[0, len(prompt) - 1:-1]
    near = 1e-4 * out.abs().max()
    return all(out[i].max() - out[i, t] <= near for i, t in enumerate(want))


def ask(program, path, ids):
    lines = "".join(json.dumps({"ids": s, "prompt_len": 1, "temperature": 1.0}) + "\n" for s in ids)
    out = subprocess.run([program, "logprobs", "--model", path], input=lines, text=True, capture_output=True)
    return [json.loads(line)["logprobs"] for line in out.stdout.splitlines()] if out.returncode == 0 else sys.exit(out.stderr)


for path in sys.argv[2:]:
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    w = {k: v.astype(np.float64) for k, v in load_file(os.path.join(path, "model.safetensors")).items()}
    gen = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, c["vocab_size"], (n,), generator=gen).tolist() for n in (2, 17, 120)]
    worst = 0.0
    for s, got in zip(ids, ask(sys.argv[1], path, ids)):
        want = logits(w, c, s)
        lse = np.log(np.exp(want - want.max(-1, keepdims=True)).sum(-1)) + want.max(-1)
        lp = want[np.arange(len(s) - 1), s[1:]] - lse[:-1]
        worst = max(worst, float(abs(np.array(got) - lp).max() / abs(want).max()))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = list(ids[1])
    for _ in range(64):    # by ours: the log-prob of each candidate
        rows = ask(sys.argv[1], path, [tokens + [t] for t in range(c["vocab_size"])])
        tokens.append(max(range(c["vocab_size"]), key=lambda t: rows[t][-1]))
    same = greedy(model, ids[1], tokens[17:])
    print(f"{path}: {worst:.1e} of the largest logit from fp64; 64 greedy tokens are{'' if same else ' not'} the class's")
    if worst > 1e-5 or not same:
        sys.exit("too far")
