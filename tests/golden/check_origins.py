#!/usr/bin/env python3
"""Compares the formulas of make_losses.py with the code that they are of: TRL's, verl's and OpenRLHF's own functions on the same log-probs.

    V/bin/pip install trl==1.16.0 verl==0.9.1 codetiming orjson omegaconf tensordict; V/bin/pip install --no-deps openrlhf==0.11.2
    V/bin/python tests/golden/check_origins.py

For each case the loss and the norm of its gradient by the log-probs are printed, and the largest difference; it ends with 1 where one
is above 1e-5 of the norm. The numbers of the presets trl, verl and openrlhf are printed beside those of the installed code, too.
"""
import collections
import importlib.util
import os
import re
import sys
import types
import make_losses as ours
import numpy as np
import torch
import yaml
import verl.trainer.ppo.core_algos as verl
from verl.trainer.config import AlgoConfig
from verl.workers.config import ActorConfig
from trl import GRPOConfig, GRPOTrainer

GROUPS, SAMPLES, LONGEST = 6, 4, 12
torch.set_default_dtype(torch.float64)


class Batch:
    """Samples of several groups with log-probs of their own: as lists for ours, padded for the origins."""

    def __init__(self, seed):
        gen = torch.Generator().manual_seed(seed)
        self.n_tok = torch.randint(1, LONGEST + 1, (GROUPS * SAMPLES,), generator=gen).tolist()
        self.old = [-2 * torch.rand(n, generator=gen) - 0.05 for n in self.n_tok]
        self.new = [(x + 0.3 * torch.randn(len(x), generator=gen)).clamp(max=-0.01) for x in self.old]
        self.ref = [x + 0.3 * torch.randn(len(x), generator=gen) for x in self.old]
        self.reward = [0.5 * int(torch.randint(0, 3, (1,), generator=gen)) for _ in self.n_tok]
        self.index = np.repeat(np.arange(GROUPS), SAMPLES)
        self.mask = torch.stack([torch.cat([torch.ones(n), torch.zeros(LONGEST - n)]) for n in self.n_tok])

    def padded(self, values):
        return torch.stack([torch.cat([v, torch.zeros(LONGEST - len(v))]) for v in values])

    def scores(self):
        """Each reward at its response's last token."""
        out = torch.zeros_like(self.mask)
        for i, n in enumerate(self.n_tok):
            out[i, n - 1] = self.reward[i]
        return out

    def leaves(self):
        return [x.clone().requires_grad_() for x in self.new]

    def groups(self):
        """As loss_of wants them; a response's tokens are its number, by which its log-probs are found."""
        each = [([i] * n, old.tolist(), r) for i, (n, old, r) in enumerate(zip(self.n_tok, self.old, self.reward))]
        return [([0], each[g * SAMPLES:(g + 1) * SAMPLES]) for g in range(GROUPS)]


def loss_here(b, case):
    new = b.leaves()
    loss = ours.loss_of(case, "model", "ref", b.groups(), lambda m, prompt, tok: new[tok[0]] if m == "model" else b.ref[tok[0]])
    loss.backward()
    return float(loss.detach()), torch.cat([x.grad for x in new])


def advantages_of(b, how):
    by_group = [slice(g * SAMPLES, (g + 1) * SAMPLES) for g in range(GROUPS)]
    return torch.cat(how([torch.tensor(b.reward[g]) for g in by_group], [torch.tensor(b.n_tok[g]) for g in by_group])).unsqueeze(-1) * b.mask


def actor(**settings):
    base = dict(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2)
    policy = settings.pop("policy_loss", {})
    c = ActorConfig(**{**base, **settings})
    for k, v in policy.items():
        object.__setattr__(c.policy_loss, k, v)
    return c


def by_verl(name, mode, **settings):
    def loss(b, new, case):
        lo, hi = case["lo"], case["hi"]
        return verl.get_policy_loss_fn(name)(old_log_prob=b.padded(b.old), log_prob=b.padded(new),
                                             advantages=advantages_of(b, case["adv"]), response_mask=b.mask, loss_agg_mode=mode,
                                             config=actor(clip_ratio_low=lo, clip_ratio_high=hi, **settings))[0]
    return loss


def estimated(estimator):
    """verl's loss of ratios with its own estimator's advantages."""
    def loss(b, new, case):
        algo = AlgoConfig(adv_estimator=estimator, gamma=1.0, norm_adv_by_std_in_grpo=True)
        a = verl.get_adv_estimator_fn(estimator)(token_level_rewards=b.scores(), response_mask=b.mask, index=b.index, config=algo)[0]
        return verl.get_policy_loss_fn("vanilla")(old_log_prob=b.padded(b.old), log_prob=b.padded(new), advantages=a, response_mask=b.mask,
                                                  loss_agg_mode=SAMPLE, config=actor(clip_ratio_c=1e9))[0]
    return loss


def by_trl(loss_type, **settings):
    """TRL's _compute_loss, whose model has the given log-probs."""
    def loss(b, new, case):
        a = advantages_of(b, case["adv"])[:, 0]
        args = types.SimpleNamespace(delta=None, use_bias_correction_kl=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
                                     vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0)
        same = types.SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=True)
        me = types.SimpleNamespace(args=args, loss_type=loss_type, beta=case["beta"], epsilon_low=case["lo"], epsilon_high=case["hi"],
                                   importance_sampling_level="token", top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
                                   max_completion_length=ours.MAX_NEW, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
                                   aux_loss_enabled=False, accelerator=same, model=types.SimpleNamespace(training=True),
                                   get_off_policy_mask=GRPOTrainer.get_off_policy_mask, get_gamma_weights=GRPOTrainer.get_gamma_weights,
                                   _metrics={"train": collections.defaultdict(list)})
        me.args.steps_per_generation = 1
        for k, v in settings.items():
            setattr(me.args if hasattr(args, k) else me, k, v)
        me._get_per_token_logps_and_entropies = lambda *_, **__: (b.padded(new), torch.ones_like(b.mask), None)
        inputs = dict(prompt_ids=torch.zeros(len(new), 1), prompt_mask=torch.ones(len(new), 1), completion_ids=torch.zeros_like(b.mask),
                      completion_mask=b.mask, advantages=a, old_per_token_logps=b.padded(b.old), ref_per_token_logps=b.padded(b.ref),
                      num_items_in_batch=b.mask.sum())
        return GRPOTrainer._compute_loss(me, None, inputs)
    return loss


SAMPLE, TOKEN = "seq-mean-token-mean", "token-mean"
# name of a case, its origin, what is to be said otherwise of the case (this batch's probabilities are larger)
CHECKS = [
    ("dual-clip", by_verl("vanilla", SAMPLE, clip_ratio_c=1.25), {}),
    ("dual-clip", by_trl("grpo", delta=1.25), {}),
    ("GSPO", by_verl("gspo", SAMPLE), {}),
    ("GSPO", by_trl("grpo", importance_sampling_level="sequence"), {}),
    ("LUSPO", by_trl("luspo", importance_sampling_level="sequence"), {}),
    ("SAPO", by_trl("sapo"), {}),
    ("SAPO", by_verl("sapo", SAMPLE, tau_pos=1.0, tau_neg=1.05), {}),
    ("GPG", by_verl("gpg", TOKEN), {}),
    ("CISPO", by_verl("cispo", TOKEN), {}),
    ("GMPO", by_verl("geo_mean", TOKEN), {}),
    ("VESPO", by_trl("vespo"), {}),
    ("DPPO_TV", by_verl("dppo_tv", TOKEN, clip_ratio_c=1.2), dict(lo=0.05, hi=0.04)),
    ("DPPO_KL", by_verl("dppo_kl", TOKEN, clip_ratio_c=1.2), dict(lo=0.01, hi=0.008)),
    ("DRO", by_verl("dro", SAMPLE, policy_loss=dict(dro_beta=0.5)), {}),
    ("OPO", estimated("opo"), {}),
    ("GRPO_PASSK", estimated("grpo_passk"), {}),
    ("REINFORCE_PP", estimated("reinforce_plus_plus"), {}),
    ("mask-kl", by_trl("grpo", off_policy_mask_threshold=0.05), {}),
    ("k3_ratio", by_trl("grpo", use_bias_correction_kl=True), {}),
]


def presets():
    """The rows of preset.c: {preset: {setting: value}}."""
    text = open(os.path.join(ours.HERE, "..", "..", "protocol", "settings", "preset.c")).read()
    out = collections.defaultdict(dict)
    for name, setting, value in re.findall(r'{ "preset", "(\w+)", "(\w+)", "(.*)" },', text):
        out[name][setting] = value
    return out


def source_of(package, *path):
    return open(os.path.join(os.path.dirname(importlib.util.find_spec(package).origin), *path)).read()


def openrlhf(flag):
    """The default of one of train_ppo_ray's flags, as its source has it."""
    return re.search(re.escape(flag) + r'".*?default=(\([^)]*\)|[^,)\s]+)', source_of("openrlhf", "cli", "train_ppo_ray.py"), re.S)[1].strip('"')


def defaults():
    """What is said in a preset beside what its origin says; returns how many differ."""
    trl, verl_all = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False), yaml.safe_load(source_of("verl", "trainer", "config", "_generated_ppo_trainer.yaml"))
    actor_all, data = verl_all["actor_rollout_ref"]["actor"], verl_all["data"]
    there = {
        "trl": dict(clip_eps_low=trl.epsilon, clip_eps_high=trl.epsilon_high or trl.epsilon, kl_coeff=trl.beta, learning_rate=trl.learning_rate,
                    lr_schedule=trl.lr_scheduler_type.value, weight_decay=trl.weight_decay, max_norm=trl.max_grad_norm,
                    num_generations=trl.num_generations, train_batch_size=trl.generation_batch_size // trl.num_generations,
                    max_new_tokens=trl.max_completion_length, rho_mask=f"[0, {trl.vllm_importance_sampling_clip_max:g}]"),
        "verl": dict(clip_eps_low=actor_all["clip_ratio_low"], clip_eps_high=actor_all["clip_ratio_high"], clip_dual=actor_all["clip_ratio_c"],
                     kl_coeff=float(actor_all["use_kl_loss"]), learning_rate=actor_all["optim"]["lr"], lr_schedule=actor_all["optim"]["lr_scheduler_type"],
                     weight_decay=actor_all["optim"]["weight_decay"], max_norm=actor_all["optim"]["clip_grad"],
                     inference_batch_size=data["train_batch_size"], train_batch_size=actor_all["ppo_mini_batch_size"],
                     max_prompt_tokens=data["max_prompt_length"], max_new_tokens=data["max_response_length"]),
        "openrlhf": dict(clip_eps_low=openrlhf("--actor.eps_clip"), kl_coeff=openrlhf("--algo.kl.init_coef"),
                         learning_rate=openrlhf("--{prefix}.adam.lr"), lr_min_ratio=openrlhf("--{prefix}.min_lr_ratio"),
                         weight_decay=openrlhf("--{prefix}.adam.weight_decay"), adam_beta2=openrlhf("--{prefix}.adam.betas").strip("()").split(",")[1],
                         max_norm=openrlhf("--{prefix}.max_norm"), inference_batch_size=openrlhf("--rollout.batch_size"),
                         train_batch_size=int(openrlhf("--train.batch_size")) // int(presets()["openrlhf"]["num_generations"])),
    }
    wrong = 0
    for name, settings in there.items():
        for setting, value in settings.items():
            here, value = presets()[name][setting], str(value).split(" if ")[0].strip()
            same = here == value or (here[0].isdigit() and value[0].isdigit() and float(here) == float(value))
            wrong += not same
            print(f"{name:9} {setting:21} {here:12} {value}{'' if same else '  DIFFERS'}")
    return wrong


def main():
    worst = defaults()
    for name, origin, other in CHECKS:
        for seed in range(3):
            b = Batch(seed)
            case = {**ours.PLAIN, **ours.CASES[name], **other}
            loss, grad = loss_here(b, case)
            new = b.leaves()
            theirs = origin(b, new, case)
            theirs.backward()
            want = torch.cat([x.grad for x in new])
            off = max(abs(loss - float(theirs.detach())), float((grad - want).norm())) / float(want.norm())
            worst = max(worst, off)
        print(f"{name:12} loss {loss:9.6f}  norm {float(want.norm()):9.6f}  apart {off:.1e}{'' if off < 1e-5 else '  DIFFERS'}")
    return worst >= 1e-5


if __name__ == "__main__":
    sys.exit(main())
