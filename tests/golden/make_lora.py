#!/usr/bin/env python3
"""Makes the fixtures of tests/unit/lora_test.c: adapters on the models of make_models.py, and what PEFT computes with them.

    python3 -m venv V; V/bin/pip install torch transformers peft safetensors; V/bin/python tests/golden/make_lora.py

Needs no network besides pip. Each lora/NAME/ is a directory as PEFT's save_pretrained writes it (without README.md);
golden.safetensors beside it holds
  token, cu_tok (as floats)      packed sequences
  coef                           a random dLoss/dlogp for each row (0 at each sequence's last)
  logits                         of every row, each sequence run on its own
  grad.TENSOR                    gradients of sum coef * logp, by the names in adapter_model.safetensors
  merged.TENSOR                  the matrices of merge_and_unload that differ from the base's
  adam_loss, adam_norm           ten AdamW steps of the adapter on the mean cross entropy (lr 1e-2, betas .9 .999, decay .01, clip 1)
"""
import json
import os
import shutil
import sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from make_models import HERE, logp_rows

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    # what Atropos trains, on one base with a tied head, and alpha / r no power of two
    "two": ("qwen2-tied", dict(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj"])),
    "all": ("llama-biased", dict(r=8, lora_alpha=16, target_modules=ALL)),
    # norms of q and k after the product; a rank that is no multiple of anything; alpha over its root
    "root": ("qwen3-untied", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["k_proj", "o_proj", "up_proj", "down_proj"])),
    # one matrix for q, k and v, and one for gate and up
    "fused": ("phi3", dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "scaled": ("granite", dict(r=2, lora_alpha=2, target_modules=["gate_proj", "self_attn.q_proj", "o_proj"])),
}
LENS = [7, 1, 40]


def adapted(base, config, gen):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "models", base), dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:    # PEFT begins with B = 0, which would leave A without a gradient
                p.copy_(torch.randn(p.shape, generator=gen) * 0.3 / p.shape[-1] ** 0.5)
    return model


def golden(name, base, config, out):
    gen = torch.Generator().manual_seed(sum(name.encode()))
    model = adapted(base, config, gen)
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    os.remove(os.path.join(out, "README.md"))
    path = os.path.join(out, "adapter_config.json")
    written = json.load(open(path))
    written["base_model_name_or_path"] = base    # no path of this machine
    written["target_modules"].sort()             # PEFT keeps a set
    json.dump(written, open(path, "w"), indent=2, sort_keys=True)
    vocab = model.config.vocab_size
    seqs = [torch.randint(0, vocab, (n,), generator=gen).tolist() for n in LENS]
    coef = torch.randn(sum(LENS), generator=gen)
    for end in (6, 7, 47):
        coef[end] = 0
    t = {"token": torch.tensor(sum(seqs, [])).float(), "cu_tok": torch.tensor([0, 7, 8, 48]).float(), "coef": coef,
         "logits": torch.cat([model(torch.tensor([s])).logits[0] for s in seqs]).detach()}
    loss, at = torch.zeros(()), 0
    for s in seqs:
        if len(s) > 1:
            loss = loss + (coef[at:at + len(s) - 1] * logp_rows(model, s)[0]).sum()
        at += len(s)
    model.zero_grad()
    loss.backward()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for n, p in trained:
        t["grad." + n.replace(".default", "")] = p.grad.detach().clone()
    before = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "models", base), dtype=torch.float32).state_dict()
    again = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "models", base), dtype=torch.float32)
    for n, w in PeftModel.from_pretrained(again, out).merge_and_unload().state_dict().items():
        if not torch.equal(w, before[n]):
            t["merged." + n] = w
    opt = torch.optim.AdamW([p for _, p in trained], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    n_tok = sum(n - 1 for n in LENS)
    for _ in range(10):
        opt.zero_grad()
        loss = -sum(logp_rows(model, s)[0].sum() for s in seqs if len(s) > 1) / n_tok
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in trained], 1.0)))
        losses.append(float(loss))
        opt.step()
    t["adam_loss"], t["adam_norm"] = torch.tensor(losses), torch.tensor(norms)
    save_file({k: v.contiguous().float() for k, v in t.items()}, os.path.join(out, "golden.safetensors"))


def main():
    """All, or those that are named."""
    for name in sys.argv[1:] or ADAPTERS:
        base, config = ADAPTERS[name]
        golden(name, base, config, os.path.join(HERE, "lora", name))
        print(name)


if __name__ == "__main__":
    main()
