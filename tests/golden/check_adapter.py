#!/usr/bin/env python3
"""Development check: adapters that rollcall wrote load in PEFT, and their merged models in transformers, with the same log-probs.

    V/bin/python tests/golden/check_adapter.py build/release/rollcall DIR...     (V: see make_lora.py)

Each DIR is an adapter in fp32, such as the checkpoint of a run with `lora_rank`. Prints the largest differences of log-probs of
random sequences and fails above 1e-4.
"""
import json
import os
import subprocess
import sys
import tempfile
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

rollcall = sys.argv[1]
for path in sys.argv[2:]:
    base = json.load(open(os.path.join(path, "adapter_config.json")))["base_model_name_or_path"]
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), path).eval()
    gen = torch.Generator().manual_seed(1)
    seqs = [torch.randint(0, adapted.config.vocab_size // 2, (n,), generator=gen).tolist() for n in (2, 17, 60)]
    lines = "".join(json.dumps({"ids": s, "prompt_len": 1, "temperature": 1.0}) + "\n" for s in seqs)
    with tempfile.TemporaryDirectory() as merged:
        subprocess.run([rollcall, "merge", "--adapter", path, "--out", merged, "--dtype", "float32"], check=True, stdout=subprocess.DEVNULL)
        whole, info = AutoModelForCausalLM.from_pretrained(merged, dtype="auto", output_loading_info=True)
    if any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{path}: {info}")
    out = subprocess.run([rollcall, "logprobs", "--model", path], input=lines, text=True, capture_output=True)
    if out.returncode:
        sys.exit(out.stderr)
    worst = {"PEFT": 0.0, "merged, in transformers": 0.0, "without the adapter": 0.0}
    for s, line in zip(seqs, out.stdout.splitlines()):
        ours = torch.tensor(json.loads(line)["logprobs"])
        with torch.no_grad(), adapted.disable_adapter():
            plain = adapted(torch.tensor([s])).logits[0]
        with torch.no_grad():
            for name, logits in zip(worst, (adapted(torch.tensor([s])).logits[0], whole.eval()(torch.tensor([s])).logits[0], plain)):
                lp = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(s[1:])[:, None])[:, 0]
                worst[name] = max(worst[name], float((lp - ours).abs().max()))
    print(path, {k: f"{v:.1e}" for k, v in worst.items()})
    if worst["PEFT"] > 1e-4 or worst["merged, in transformers"] > 1e-4:
        sys.exit("too large")
