#!/usr/bin/env python3
"""Makes rl/losses.safetensors: what PyTorch computes with each form of the policy loss, written here from the papers' formulas on whole
samples (sums over sequences, autograd; nothing is derived by hand).

    python3 -m venv V; V/bin/pip install 'torch>=2.5' transformers safetensors; V/bin/python tests/golden/make_losses.py

The file holds the rollouts of STEPS optimizer steps on models/qwen2-tied (their log-probs are the first model's with noise, so later
steps are off-policy), and for each case of CASES its losses and gradient norms, loss.NAME and norm.NAME (STEPS each; means where a step is several updates).
tests/unit/trainer_test.c has the same cases as settings.
"""
import os
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "models", "qwen2-tied")
TEACHER = os.path.join(HERE, "models", "qwen3-untied")    # another shape with as many ids
STEPS, GROUPS, SAMPLES, MAX_NEW = 8, 3, 4, 8
torch.set_num_threads(1)


def load():
    """rope_theta stands where only some versions of transformers look for it."""
    config = Qwen2Config.from_pretrained(MODEL)
    config.rope_theta = 1e6
    return Qwen2ForCausalLM.from_pretrained(MODEL, config=config).float().eval()


def load_teacher():
    config = Qwen3Config.from_pretrained(TEACHER)
    config.rope_theta = 1e6
    return Qwen3ForCausalLM.from_pretrained(TEACHER, config=config).float().eval()


def logprobs(model, prompt, tokens):
    seq = torch.tensor([prompt + tokens])
    lp = torch.log_softmax(model(seq).logits[0].float(), -1)
    return torch.stack([lp[len(prompt) - 1 + i, t] for i, t in enumerate(tokens)])


def deviation(r):
    return (r - r.mean()) / (r.std(unbiased=True) + 1e-4)


def population(r):
    return (r - r.mean()) / (r.std(unbiased=False) + 1e-8)


def centered(r):
    return r - r.mean()


def grouped(how):
    """Advantages of every group by its rewards alone."""
    return lambda rewards, lengths: [how(r) for r in rewards]


def deviation_batch(rewards, lengths):
    """TRL's scale_rewards batch."""
    s = torch.cat(rewards).std(unbiased=True) + 1e-4
    return [(r - r.mean()) / s for r in rewards]


def length_weighted(rewards, lengths):
    """verl's compute_opo_outcome_advantage."""
    return [r - (r * n).sum() / n.sum() for r, n in zip(rewards, lengths)]


def over_mean(r):
    """MaxRL, arXiv 2602.02710."""
    return (r - r.mean()) / r.mean()


def best(r):
    """verl's compute_grpo_passk_outcome_advantage."""
    top, second = torch.topk(r, 2).values
    return torch.where(torch.arange(len(r)) == r.argmax(), (top - second) / (r.std(unbiased=True) + 1e-6), 0.0)


def whitened(rewards, lengths):
    """verl's compute_reinforce_plus_plus_outcome_advantage with gamma 1."""
    tokens = torch.cat([r.repeat_interleave(n) for r, n in zip(rewards, lengths)])
    return [(r - tokens.mean()) * torch.rsqrt(tokens.var(unbiased=True) + 1e-8) for r in rewards]


def ppo(r, a, lp, lo, hi):
    return -torch.minimum(r * a, r.clamp(1 - lo, 1 + hi) * a)


def cispo(r, a, lp, lo, hi):
    return -r.clamp(1 - lo, 1 + hi).detach() * a * lp


def dual_clip(r, a, lp, lo, hi, c=1.25):
    """verl's compute_policy_loss_vanilla with clip_ratio_c = c."""
    kept = torch.maximum(-a * r, -a * r.clamp(1 - lo, 1 + hi))
    return torch.where(a < 0, torch.minimum(-a * c, kept), kept)


def sapo(r, a, lp, lo, hi, pos=1.0, neg=1.05):
    """TRL's loss_type sapo, with its default temperatures."""
    tau = torch.where(a > 0, pos, neg)
    return -torch.sigmoid(tau * (r - 1)) * 4 / tau * a


def gpg(r, a, lp, lo, hi):
    """verl's compute_policy_loss_gpg."""
    return -lp * a


def atropos(r, a, lp, lo, hi):
    c = r.clamp(1 - lo, 1 + hi)
    return torch.where(a >= 0, -torch.minimum(r * a, c * a), -torch.maximum(r * a, c * a))


def dppo(measure, c):
    """verl's compute_policy_loss_dppo_tv and _kl with clip_ratio_c = c."""
    def term(r, a, lp, lo, hi):
        p = torch.exp(lp).detach()
        was = p / r.detach()
        moved = measure(p, was)
        beyond = torch.where(a > 0, (p > was) & (moved > hi), (p < was) & (moved > lo))
        return torch.where(beyond, 0.0, -r.detach().clamp(max=c) * a * lp)
    return term


def tv(p, was):
    return (p - was).abs()


def binary_kl(p, was):
    return was * torch.log(was / p) + (1 - was) * torch.log((1 - was + 1e-8) / (1 - p + 1e-8))


def dro(r, a, lp, lo, hi, beta=0.5):
    """verl's compute_policy_loss_dro with dro_beta = beta."""
    return -(lp * a - beta / 2 * torch.log(r) ** 2)


def gspo_sample(new, old, a, lo, hi):
    """All terms of one whole response, GSPO eq. 5 (a: one number), autograd through the mean."""
    s = torch.exp((new - old).mean())
    return -torch.minimum(s * a, s.clamp(1 - lo, 1 + hi) * a) * len(new)


def gmpo_sample(new, old, a, lo, hi):
    """verl's compute_policy_loss_geo_mean."""
    d = new - old
    kept = torch.sign(a) * torch.minimum(torch.sign(a) * d, torch.sign(a) * d.clamp(-lo, hi))
    return -torch.exp(kept.mean()) * a * len(new)


def vespo_sample(new, old, a, lo, hi):
    """TRL's loss_type vespo, with its default k and lambda."""
    k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    w = torch.exp((new - old).detach().sum())
    return -(torch.exp(lam + k * torch.log(w) - lam * w) * a * new).sum()


def through(backward, forward):
    """The value of one with the gradient of the other: the end of verl's kl_penalty."""
    return backward - backward.detach() + forward.detach()


KL = {
    "k1": lambda new, ref, r: new - ref,
    "k2": lambda new, ref, r: (new - ref) ** 2 / 2,
    "k3": lambda new, ref, r: torch.exp(ref - new) - (ref - new) - 1,
    "k1_ratio": lambda new, ref, r: r * (new - ref),
    "k3_ratio": lambda new, ref, r: r * (torch.exp(ref - new) - (ref - new) - 1),
    "abs": lambda new, ref, r: (new - ref).abs(),
    "k3+": lambda new, ref, r: through(KL["k2"](new, ref, r), KL["k3"](new, ref, r)),
}
PLAIN = dict(adv=grouped(deviation), term=ppo, lo=0.2, hi=0.2, level="sample", kl="k3", beta=0.0)
CASES = {
    "DR_GRPO": dict(adv=grouped(centered), level="constant"),
    "GSPO": dict(whole=gspo_sample, lo=0.05, hi=0.06),
    "GSPO-token": dict(whole=gspo_sample, lo=0.05, hi=0.06, level="token"),
    "CISPO": dict(term=cispo, lo=1.0, hi=0.3, level="token"),
    "atropos": dict(adv=grouped(population), term=atropos),
    "k1": dict(beta=0.5, kl="k1"),
    "k2": dict(beta=0.5, kl="k2"),
    "k1_ratio": dict(beta=0.5, kl="k1_ratio"),
    "k3_ratio": dict(beta=0.5, kl="k3_ratio"),
    "abs": dict(beta=0.5, kl="abs"),
    "k3+": dict(beta=0.5, kl="k3+"),
    "dual-clip": dict(term=dual_clip),
    "SAPO": dict(term=sapo),
    "GPG": dict(adv=grouped(centered), term=gpg, level="token"),
    "LUSPO": dict(whole=gspo_sample, lo=0.05, hi=0.06, level="sum"),
    "GMPO": dict(whole=gmpo_sample, lo=0.1, hi=0.12),
    "VESPO": dict(whole=vespo_sample, level="token"),
    "DPPO_TV": dict(term=dppo(tv, 1.2), lo=5e-4, hi=4e-4, level="token"),
    "DPPO_KL": dict(term=dppo(binary_kl, 1.2), lo=4e-5, hi=3e-5, level="token"),
    "DRO": dict(term=dro),
    "DEVIATION_BATCH": dict(adv=deviation_batch),
    "OPO": dict(adv=length_weighted),
    "MAXRL": dict(adv=grouped(over_mean)),
    "GRPO_PASSK": dict(adv=grouped(best)),
    "REINFORCE_PP": dict(adv=whitened),
    "mask-kl": dict(mask=("kl", 0.0, 0.05)),
    "teacher": dict(beta=0.0, teacher=0.5, rewards=1.0),
    "teacher-alone": dict(beta=0.0, teacher=2.0, rewards=0.0, level="token"),
    "open_instruct": dict(adv=grouped(centered), hi=0.272, level="token", beta=0.05, current=True, clamp=("token", 0.0, 1.2)),
    "clamp-sequence": dict(current=True, clamp=("sequence", 0.5, 1.3)),
    "clamp-geometric": dict(current=True, clamp=("geometric", 0.9, 1.05)),
    "icepop": dict(current=True, clamp=("token", 0.0, 2.0), mask=("token", 0.8, 1.25)),
    "mask-sequence": dict(mask=("sequence", 0.5, 2.0)),
    "mask-geometric": dict(mask=("geometric", 0.9, 1.1)),
    "updates": dict(updates=(2, 2)),    # epochs, mini-batches
    "mask-tv": dict(mask=("tv", 0.0, 0.15)),
    "polyak": dict(beta=0.5, moves=(2, 0.6)),    # the reference: how often it moves, and by how much
    "copied": dict(beta=0.5, moves=(3, 1.0)),
    "adafactor": dict(adafactor=True),
    "layers": dict(layers=[1]),    # the only ones that are trained
}


def rho(level, d):
    """Of each token, whatever the level."""
    value = {"token": torch.exp(d), "sequence": torch.exp(d.sum()), "geometric": torch.exp(d.mean()),
             "tv": (torch.exp(d) - 1).abs().mean(), "kl": -d.mean()}[level]
    return value.expand(len(d)) if value.dim() == 0 else value


def correction(case, now, sampled, a):
    d, factor = now - sampled, torch.ones(len(now))
    if "clamp" in case:
        level, low, high = case["clamp"]
        factor = rho(level, d).clamp(low, high)
    if "mask" in case:
        level, low, high = case["mask"]
        r = rho(level, d)
        out = {"tv": (r > high) & (d * a > 0), "kl": (r > high) & (a < 0)}.get(level, (r < low) | (r > high))
        factor = torch.where(out, torch.zeros(()), factor)
    return factor


def loss_of(case, model, ref, groups, logprobs=logprobs):
    """logprobs(model or ref, prompt, tokens) are those of a response."""
    c = {**PLAIN, **case}
    n_sample = sum(len(samples) for _, samples in groups)
    n_tok = sum(len(tok) for _, samples in groups for tok, _, _ in samples)
    total = torch.zeros(())
    every = c["adv"]([torch.tensor([reward for _, _, reward in samples], dtype=torch.float64) for _, samples in groups],
                     [torch.tensor([len(tok) for tok, _, _ in samples]) for _, samples in groups])
    for (prompt, samples), advantages in zip(groups, every):
        advantages = advantages.float()
        for a, (tok, sampled, _) in zip(advantages, samples):
            new, sampled = logprobs(model, prompt, tok), torch.tensor(sampled)
            with torch.no_grad():
                base = logprobs(ref, prompt, tok)
            old = new.detach() if c.get("current") else sampled
            factor, r = correction(c, new.detach(), sampled, a), torch.exp(new - old)
            if "teacher" in c:    # sampled-token reverse KL as an advantage: verl's k1 with use_policy_gradient
                a = c["rewards"] * a + c["teacher"] * (base - sampled)
            divide = {"sample": n_sample * len(tok), "token": n_tok, "constant": n_sample * MAX_NEW, "sum": n_sample}[c["level"]]
            if "whole" in c:
                policy = c["whole"](new, old, a, c["lo"], c["hi"])
            else:
                policy = (factor * c["term"](r, a, new, c["lo"], c["hi"])).sum()
            penalty = KL[c["kl"]](new, base, r).sum() if c["beta"] else 0
            total = total + (policy + c["beta"] * penalty) / divide
    return total


def main():
    gen = torch.Generator().manual_seed(11)
    first = load()
    vocab, batches = first.config.vocab_size, []
    t = {k: [] for k in ("token", "n_prompt", "n_tok", "logp_old", "reward", "cut")}
    for _ in range(STEPS):
        groups = []
        for _ in range(GROUPS):
            prompt = torch.randint(0, vocab, (int(torch.randint(2, 6, (1,), generator=gen)),), generator=gen).tolist()
            samples = []
            for k in range(SAMPLES):
                n = int(torch.randint(1, MAX_NEW + 1, (1,), generator=gen))
                tok = torch.randint(0, vocab, (n,), generator=gen).tolist()
                with torch.no_grad():
                    old = logprobs(first, prompt, tok) + 0.2 * torch.randn(n, generator=gen)
                samples.append((tok, old.tolist(), float(torch.randint(0, 3, (1,), generator=gen)) * 0.5 + (k == 0)))
            groups.append((prompt, samples))
            t["n_prompt"].append(len(prompt))
            t["token"] += prompt
            for tok, old, reward in samples:
                t["n_tok"].append(len(tok))
                t["token"] += tok
                t["logp_old"] += old
                t["reward"].append(reward)
                t["cut"].append(0)
        batches.append(groups)
    for name, case in CASES.items():
        model, ref = load(), load_teacher() if "teacher" in case else load()
        for key, p in model.named_parameters():
            p.requires_grad = "layers" not in case or any(f"layers.{k}." in key for k in case["layers"])
        if case.get("adafactor"):
            opt = torch.optim.Adafactor(model.parameters(), lr=3e-3, weight_decay=0.01)
        else:
            opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        t["loss." + name], t["norm." + name] = [], []
        n_epoch, n_mini = case.get("updates", (1, 1))
        every, share = case.get("moves", (STEPS + 1, 0.0))
        for step, groups in enumerate(batches):
            norms, losses = [], []
            for u in range(n_epoch * n_mini):
                m, n = u % n_mini, len(groups)
                opt.zero_grad()
                loss = loss_of(case, model, ref, groups[n * m // n_mini:n * (m + 1) // n_mini])
                loss.backward()
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
                losses.append(float(loss))
                opt.step()
            if (step + 1) % every == 0:
                with torch.no_grad():
                    for p, q in zip(ref.parameters(), model.parameters()):
                        p.lerp_(q, share)
            t["norm." + name].append(sum(norms) / len(norms))
            t["loss." + name].append(sum(losses) / len(losses))
    save_file({k: torch.tensor(v, dtype=torch.float32) for k, v in t.items()}, os.path.join(HERE, "rl", "losses.safetensors"))


if __name__ == "__main__":
    main()
