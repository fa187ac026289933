#!/usr/bin/env python3
"""Development check: a directory that rollcall wrote loads in transformers and gives the same log-probs.

    V/bin/python tests/golden/check_saved.py build/release/rollcall DIR...     (V: see make_models.py)

Prints the largest difference of log-probs of random sequences for each DIR and fails above 1e-4 (fp32 weights) or 0.1 (bf16).
Rows of the embedding without an id of the tokenizer have probability 0 in rollcall, so they are left out here too.
"""
import json
import subprocess
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

for path in sys.argv[2:]:
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype="auto", output_loading_info=True,
                                                       attn_implementation="eager")    # others leave out soft caps
    if any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{path}: {info}")
    dtype = model.dtype
    model = model.float().eval()
    try:
        n_id = len(AutoTokenizer.from_pretrained(path))
    except Exception as e:    # a directory without a tokenizer
        print(f"{path}: no tokenizer ({type(e).__name__})")
        n_id = model.config.vocab_size
    gen = torch.Generator().manual_seed(1)
    longest = getattr(model.config, "original_max_position_embeddings", None) or 120
    seqs = [torch.randint(0, n_id, (n,), generator=gen).tolist() for n in (2, 17, min(120, longest))]
    lines = "".join(json.dumps({"ids": s, "prompt_len": 1, "temperature": 1.0}) + "\n" for s in seqs)
    out = subprocess.run([sys.argv[1], "logprobs", "--model", path], input=lines, text=True, capture_output=True)
    if out.returncode:
        sys.exit(out.stderr)
    worst = 0.0
    for s, line in zip(seqs, out.stdout.splitlines()):
        with torch.no_grad():
            lp = torch.log_softmax(model(torch.tensor([s])).logits[0][:, :n_id], -1)
        want = lp[:-1].gather(1, torch.tensor(s[1:])[:, None])[:, 0]
        worst = max(worst, float((torch.tensor(json.loads(line)["logprobs"]) - want).abs().max()))
    print(f"{path}: {dtype}, largest difference {worst:.2e}")
    if worst > (1e-4 if dtype == torch.float32 else 0.1):
        sys.exit("too large")
