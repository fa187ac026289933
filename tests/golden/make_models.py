#!/usr/bin/env python3
"""Makes the fixtures of tests/unit/model_golden_test.c and trainer_test.c: tiny random models, and what PyTorch
and transformers compute with them in fp32.

    python3 -m venv V; V/bin/pip install torch transformers safetensors; V/bin/python tests/golden/make_models.py

Names after the script (of models, "rope" or "rl") make these alone. Needs no network besides pip. Each models/NAME/ is a Hugging Face directory; golden.safetensors beside the weights holds
  token, cu_tok (as floats)      packed sequences
  coef                           a random dLoss/dlogp for each row (0 at each sequence's last)
  logits                         of every row, each sequence run on its own
  grad.TENSOR                    gradients of sum coef * logp
  adam_loss, adam_norm           ten AdamW steps on the mean cross entropy (lr 1e-2, betas .9 .999, decay .01, clip 1)
models/rope.json holds RoPE's inverse frequencies and attention factors for configurations of every type.
rl/ALGO.safetensors holds 20 optimizer steps of an implementation of the policy losses written here from the formulas
(DeepSeekMath eq. 3-4, DAPO eq. 8-12, RLOO eq. 8, REINFORCE++ eq. 8), with the rollouts it was fed.
"""
import json
import math
import os
import shutil
import sys
import tempfile
import torch
from safetensors.torch import load_file, save_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GraniteConfig, GraniteForCausalLM,
                          GraniteMoeConfig, GraniteMoeForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, OlmoeConfig,
                          OlmoeForCausalLM, Phi3Config, Phi3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
# The class computes a gated delta net in two ways, by chunks and token by token, which differ by 4e-5 of the largest logit in fp32. The
# second is the formula itself.
modeling_qwen3_5.torch_chunk_gated_delta_rule = modeling_qwen3_5.torch_recurrent_gated_delta_rule
COMMON = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=40, max_position_embeddings=128,
              attn_implementation="eager")
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
TYPES = ["sliding_attention", "full_attention"]
MODELS = {
    "qwen2-tied": (Qwen2ForCausalLM, Qwen2Config(num_attention_heads=2, num_key_value_heads=1, rope_theta=1e6, rms_norm_eps=1e-6,
                                                 tie_word_embeddings=True, **COMMON)),
    "qwen2-untied": (Qwen2ForCausalLM, Qwen2Config(num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5,
                                                   tie_word_embeddings=False, **COMMON)),
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                                 tie_word_embeddings=True, rope_theta=1e6, **COMMON)),
    "qwen3-untied": (Qwen3ForCausalLM, Qwen3Config(num_attention_heads=3, num_key_value_heads=3, head_dim=16,
                                                   tie_word_embeddings=False, rope_theta=1e6, **COMMON)),
    "llama-scaled": (LlamaForCausalLM, LlamaConfig(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False,
                     rope_theta=1e4, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                       original_max_position_embeddings=32), **COMMON)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
                                                 rms_norm_eps=1e-5, **COMMON)),
    # Qwen2.5's recipe for long texts; the longest sequence is longer than what the model was made for
    "qwen2-yarn": (Qwen2ForCausalLM, Qwen2Config(num_attention_heads=2, num_key_value_heads=1, rope_theta=1e4, tie_word_embeddings=False,
                   rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32), **COMMON)),
    "mistral-linear": (MistralForCausalLM, MistralConfig(num_attention_heads=3, num_key_value_heads=1, head_dim=16, sliding_window=None,
                       rope_theta=1e4, rope_scaling=dict(rope_type="linear", factor=2.0), **COMMON)),
    "granite": (GraniteForCausalLM, GraniteConfig(num_attention_heads=2, num_key_value_heads=1, embedding_multiplier=12.0,
                residual_multiplier=0.22, logits_scaling=8.0, attention_multiplier=0.1, tie_word_embeddings=True,
                **NO_TOKENS, **COMMON)),
    "llama-biased": (LlamaForCausalLM, LlamaConfig(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False,
                     attention_bias=True, mlp_bias=True, rope_theta=1e4, **COMMON)),
    # the first layer does not rotate
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(num_attention_heads=2, num_key_value_heads=1, no_rope_layers=[0, 1],
                **NO_TOKENS, **COMMON)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
              rope_theta=1e4, tie_word_embeddings=False, attention_bias=True, **NO_TOKENS, **COMMON)),
    # the layers with a window turn at frequencies of their own
    "olmo3": (Olmo3ForCausalLM, Olmo3Config(num_attention_heads=2, num_key_value_heads=1, sliding_window=5, layer_types=TYPES,
              rope_parameters=dict(full_attention=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32),
                                   sliding_attention=dict(rope_type="default", rope_theta=3e4)),
              tie_word_embeddings=False, **NO_TOKENS, **COMMON)),
    "phi3": (Phi3ForCausalLM, Phi3Config(num_attention_heads=2, num_key_value_heads=1, sliding_window=33, rope_theta=1e4,
             tie_word_embeddings=False, **NO_TOKENS, **COMMON)),
    "phi3-long": (Phi3ForCausalLM, Phi3Config(num_attention_heads=2, num_key_value_heads=2, rope_theta=1e4, tie_word_embeddings=True,
                  original_max_position_embeddings=64, partial_rotary_factor=0.75, rope_scaling=dict(
                      rope_type="longrope", short_factor=[1 + 0.1 * k for k in range(6)], long_factor=[2.0 + k for k in range(6)]),
                  **NO_TOKENS, **COMMON)),
    # all sequences are longer than 4
    "phi3-longer": (Phi3ForCausalLM, Phi3Config(num_attention_heads=2, num_key_value_heads=1, rope_theta=1e4, tie_word_embeddings=True,
                    original_max_position_embeddings=4, rope_scaling=dict(
                        rope_type="longrope", attention_factor=1.2, short_factor=[1 + 0.1 * k for k in range(8)],
                        long_factor=[2.0 + k for k in range(8)]),
                    **NO_TOKENS, **COMMON)),
    # other families take longrope, too: from the length that is given, or from max_position_embeddings
    "llama-longrope": (LlamaForCausalLM, LlamaConfig(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, rope_scaling=dict(
                           rope_type="longrope", rope_theta=1e4, factor=2.0, original_max_position_embeddings=4,
                           short_factor=[1 + 0.1 * k for k in range(8)], long_factor=[2.0 + k for k in range(8)]), **COMMON)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(num_attention_heads=2, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=24,
               sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **NO_TOKENS, **COMMON)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(num_attention_heads=2, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=24,
               sliding_window=5, layer_types=TYPES, rope_parameters=dict(
                   full_attention=dict(rope_type="linear", rope_theta=1e6, factor=2.0),
                   sliding_attention=dict(rope_type="default", rope_theta=1e4)), **NO_TOKENS, **COMMON)),
    "mistral-window": (MistralForCausalLM, MistralConfig(num_attention_heads=2, num_key_value_heads=1, sliding_window=5, rope_theta=1e4,
                       **COMMON)),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config(num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True, sliding_window=7,
                     max_window_layers=1, rope_theta=1e4, tie_word_embeddings=True, **COMMON)),
    # two layers have a matrix for each head as their state; half of each head of the other turns, and its output has a gate. The norm of
    # an output that happens to be near 0 is steep, so eps is large.
    "qwen3-5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
                linear_key_head_dim=16, linear_value_head_dim=8, rms_norm_eps=1e-2, tie_word_embeddings=True,
                rope_parameters=dict(
                    rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True),
                **NO_TOKENS, **{**COMMON, "num_hidden_layers": 3})),
    # the second layer has one MLP, and 4 of 6 experts of the others few rows
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=6,
                  num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True, mlp_only_layers=[1], rope_theta=1e6,
                  **{**COMMON, "num_hidden_layers": 3})),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig(num_attention_heads=2, num_key_value_heads=1, num_experts=8, num_experts_per_tok=3,
              rope_theta=1e4, **NO_TOKENS, **COMMON)),
    "mixtral": (MixtralForCausalLM, MixtralConfig(num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
                num_experts_per_tok=2, rope_theta=1e4, **NO_TOKENS, **COMMON)),
    "granite-moe": (GraniteMoeForCausalLM, GraniteMoeConfig(num_attention_heads=2, num_key_value_heads=1, num_local_experts=5,
                    num_experts_per_tok=2, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                    attention_multiplier=0.1, tie_word_embeddings=True, **NO_TOKENS, **COMMON)),
}
ROPES = {
    "default": dict(rope_type="default"),
    "linear": dict(rope_type="linear", factor=2.5),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    "yarn, L not given": dict(rope_type="yarn", factor=16.0),
    "yarn, betas": dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=128, beta_fast=16.0, beta_slow=2.0),
    "yarn, not truncated": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
    "yarn, attention factor": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.25),
    "yarn, both mscales": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.5),
    "yarn, one mscale": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7),
    "yarn, factor 1": dict(rope_type="yarn", factor=1.0, original_max_position_embeddings=256),
    "longrope": dict(rope_type="longrope", short_factor=[1 + 0.1 * k for k in range(32)], long_factor=[2.0 + k for k in range(32)],
                     original_max_position_embeddings=64),
    "longrope, attention factor": dict(rope_type="longrope", short_factor=[1 + 0.1 * k for k in range(32)], attention_factor=1.2,
                                       long_factor=[2.0 + k for k in range(32)], original_max_position_embeddings=128),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
}


def randomise(model, gen):
    """Weights large enough that every part matters: norms and biases too."""
    adds_one = model.config.model_type.startswith(("gemma", "qwen3_5"))    # their norms add 1 to their weights
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1 and "norm" in name:
                p.copy_((0 if adds_one and "linear_attn.norm" not in name else 1) + 0.2 * torch.randn(p.shape, generator=gen))
            else:
                p.copy_(torch.randn(p.shape, generator=gen) * (0.3 if p.dim() == 1 else 1.0 / math.sqrt(p.shape[-1])))


def logp_rows(model, seq, temperature=1.0):
    """Log-probs of seq[1:] under the model, and the entropies."""
    logits = model(torch.tensor([seq])).logits[0].float() / temperature
    lp = torch.log_softmax(logits, -1)
    return lp[:-1].gather(1, torch.tensor(seq[1:])[:, None])[:, 0], -(lp.exp() * lp).sum(-1)[:-1]


def file_gradients(model):
    """The gradients by the names that the files have: a model of gradients, saved. Experts are one tensor in memory and many in files."""
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for n, p in model.named_parameters():
            p.copy_(p.grad)
        model.save_pretrained(folder, safe_serialization=True)
        for n, p in model.named_parameters():
            p.copy_(kept[n])
        return load_file(os.path.join(folder, "model.safetensors"))


def choices_are_clear(model, seqs):
    """Is no row's last chosen expert nearly as good as the first one left out? A choice has no slope, and bf16 may fall on its other side."""
    k = getattr(model.config, "num_experts_per_tok", None)
    if not k:
        return True
    with torch.no_grad():
        for s in seqs:
            for logits in model(torch.tensor([s]), output_router_logits=True).router_logits:
                best = logits.sort(-1, descending=True).values
                if ((best[:, k - 1] - best[:, k]) < 0.03 * logits.std()).any():
                    return False
    return True


def golden(name, cls, config, out):
    gen = torch.Generator().manual_seed(sum(name.encode()))
    model = cls(config).float().eval()
    lens = [7, 1, 40]
    while True:
        randomise(model, gen)
        seqs = [torch.randint(0, config.vocab_size, (n,), generator=gen).tolist() for n in lens]
        if choices_are_clear(model, seqs):
            break
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    model.save_pretrained(out, safe_serialization=True)
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(out, extra)):
            os.remove(os.path.join(out, extra))
    t = {"token": torch.tensor(sum(seqs, [])).float(), "cu_tok": torch.tensor([0, 7, 8, 48]).float()}
    coef = torch.randn(sum(lens), generator=gen)
    for end in (6, 7, 47):
        coef[end] = 0
    t["coef"] = coef
    t["logits"] = torch.cat([model(torch.tensor([s])).logits[0] for s in seqs]).detach()
    loss = torch.zeros(())
    at = 0
    for s in seqs:
        if len(s) > 1:
            loss = loss + (coef[at:at + len(s) - 1] * logp_rows(model, s)[0]).sum()
        at += len(s)
    model.zero_grad()
    loss.backward()
    for n, grad in file_gradients(model).items():
        t["grad." + n] = grad
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    n_tok = sum(n - 1 for n in lens)
    for _ in range(10):
        opt.zero_grad()
        loss = -sum(logp_rows(model, s)[0].sum() for s in seqs if len(s) > 1) / n_tok
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        losses.append(float(loss))
        opt.step()
    t["adam_loss"], t["adam_norm"] = torch.tensor(losses, dtype=torch.float32), torch.tensor(norms, dtype=torch.float32)
    save_file({k: v.contiguous().float() for k, v in t.items()}, os.path.join(out, "golden.safetensors"))


def advantages(algo, r):
    r = torch.tensor(r, dtype=torch.float64)
    if algo in ("GRPO", "DAPO"):
        return (r - r.mean()) / (r.std(unbiased=True) + 1e-4)
    if algo == "RLOO":
        return torch.stack([r[i] - torch.cat([r[:i], r[i + 1:]]).mean() for i in range(len(r))])
    return r - r.mean()


def rl_step(algo, model, ref, groups, cfg):
    """Loss of one batch of groups [(prompt, [(tokens, logp_old, reward, truncated)])] with all counts over the batch."""
    beta, lo, hi = cfg["beta"], cfg["clip_low"], cfg["clip_high"]
    rows = []
    for prompt, samples in groups:
        adv = advantages(algo, [s[2] for s in samples])
        for a, (tok, old, reward, cut) in zip(adv, samples):
            seq = prompt + tok
            new = logp_rows(model, seq)[0][len(prompt) - 1:]
            with torch.no_grad():
                refl = logp_rows(ref, seq)[0][len(prompt) - 1:]
            rows.append(dict(new=new, old=torch.tensor(old), ref=refl, adv=a.float().expand(len(tok)),
                             mask=0.0 if algo == "DAPO" and cut else 1.0))
    if algo == "REINFORCE_PPB":
        per = [r["adv"] - beta * (torch.exp(r["ref"] - r["old"]) - (r["ref"] - r["old"]) - 1) for r in rows]
        flat = torch.cat(per).double()
        mu = flat.sum() / (len(flat) + 1e-4)
        var = ((flat - mu) ** 2).sum() / (len(flat) + 1e-4)
        for r, a in zip(rows, per):
            r["adv"] = ((a.double() - mu) / torch.sqrt(var + 1e-8)).float()
    total = sum(len(r["new"]) for r in rows if r["mask"])
    loss = torch.zeros(())
    for r in rows:
        ratio = torch.exp(r["new"] - r["old"])
        l = -torch.minimum(ratio * r["adv"], ratio.clamp(1 - lo, 1 + hi) * r["adv"])
        if beta > 0 and algo != "REINFORCE_PPB":
            d = r["ref"] - r["new"]
            l = l + beta * (torch.exp(d) - d - 1)
        if algo == "DAPO":
            loss = loss + r["mask"] * l.sum() / total
        else:
            loss = loss + l.mean() / len(rows)
    return loss


def rl(algo, out):
    cls, config = MODELS["qwen2-tied"]
    src = os.path.join(HERE, "models", "qwen2-tied")
    model, ref = cls.from_pretrained(src).float().eval(), cls.from_pretrained(src).float().eval()
    gen = torch.Generator().manual_seed(7)
    cfg = dict(beta=0.0 if algo == "DAPO" else 0.05, clip_low=0.2, clip_high=0.28 if algo == "DAPO" else 0.2)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    t = {k: [] for k in ("token", "n_prompt", "n_tok", "logp_old", "reward", "cut", "loss", "norm")}
    for _ in range(20):
        groups = []
        for _ in range(3):
            prompt = torch.randint(0, config.vocab_size, (int(torch.randint(2, 6, (1,), generator=gen)),), generator=gen).tolist()
            samples = []
            for _ in range(4):
                n = int(torch.randint(1, 9, (1,), generator=gen))
                tok = torch.randint(0, config.vocab_size, (n,), generator=gen).tolist()
                with torch.no_grad():
                    old = logp_rows(model, prompt + tok)[0][len(prompt) - 1:] + 0.2 * torch.randn(n, generator=gen)
                samples.append((tok, old.tolist(), float(torch.randint(0, 3, (1,), generator=gen)) * 5, n == 8))
            if len({s[2] for s in samples}) == 1:    # keep some spread in every group
                samples[0] = samples[0][:2] + (samples[0][2] + 5,) + samples[0][3:]
            groups.append((prompt, samples))
        opt.zero_grad()
        loss = rl_step(algo, model, ref, groups, cfg)
        loss.backward()
        t["norm"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        t["loss"].append(float(loss))
        opt.step()
        for prompt, samples in groups:
            t["n_prompt"].append(len(prompt))
            t["token"] += prompt
            for tok, old, reward, cut in samples:
                t["n_tok"].append(len(tok))
                t["token"] += tok
                t["logp_old"] += old
                t["reward"].append(reward)
                t["cut"].append(float(cut))
    save_file({k: torch.tensor(v, dtype=torch.float32) for k, v in t.items()}, out)


def rope(out):
    """Each case as a config.json would have it, with transformers' numbers beside it."""
    cases = []
    for name, scaling in ROPES.items():
        for theta in (1e4, 1e6):
            shape = dict(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32, vocab_size=40,
                         max_position_embeddings=256)
            kind = scaling["rope_type"]
            cls = Phi3Config if kind == "longrope" else LlamaConfig
            original = dict(original_max_position_embeddings=scaling["original_max_position_embeddings"]) if kind == "longrope" else {}
            tokens = NO_TOKENS if kind == "longrope" else {}
            config = cls(rope_theta=theta, rope_scaling=dict(scaling), **shape, **original, **tokens)
            if kind == "default":
                freq, factor = LlamaForCausalLM(config).model.rotary_emb.inv_freq, 1.0
            else:
                freq, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
            cases.append(dict(name=name, config=dict(model_type=config.model_type, rms_norm_eps=1e-6, rope_theta=theta, rope_scaling=scaling, **shape),
                              inv_freq=freq.tolist(), attention_factor=factor))
    with open(out, "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def main():
    wanted = sys.argv[1:] or [*MODELS, "rope", "rl"]
    for name, (cls, config) in MODELS.items():
        if name in wanted:
            golden(name, cls, config, os.path.join(HERE, "models", name))
    if "rope" in wanted:
        rope(os.path.join(HERE, "models", "rope.json"))
    os.makedirs(os.path.join(HERE, "rl"), exist_ok=True)
    for algo in ("GRPO", "DAPO", "RLOO", "REINFORCE_PPB") if "rl" in wanted else ():
        rl(algo, os.path.join(HERE, "rl", algo + ".safetensors"))


if __name__ == "__main__":
    main()
