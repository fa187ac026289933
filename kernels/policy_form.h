/* policy_form.h - the form of a policy loss: the terms of a token and their derivatives, for ref, for CUDA, and for what counts clipped
 * tokens
 *
 * A form travels whole from a run's settings (trainer_hyper_of) to the kernel (ops.h, policy_loss). To add one: a name in an enum here, its
 * case in a function here, and its word in knobs.c's choices, in the enum's order. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include "kernels/both.h"

/* Where the ratio stops to count. With c = clip(r, 1 - clip_low, 1 + clip_high), the policy term of a token is
 *   ppo      -min(r A, c A)                                   PPO, arXiv 1707.06347, eq. 7; two widths: DAPO, arXiv 2503.14476, sec. 3.1
 *   cispo    -c A logp, c without gradient                    MiniMax-M1, arXiv 2506.13585, eq. 4 and 5: every token keeps a gradient
 *   atropos  -min(r A, c A) for A >= 0, -max(r A, c A) else   the example trainer of Atropos, kept for comparison: it is no bound, since
 *                                                             tokens of A < 0 above 1 + clip_high are no longer pushed down
 *   sapo     -(4 / tau) sigmoid(tau (r - 1)) A                arXiv 2511.20347, eq. 5 and 6: tau is sapo_pos for A > 0, sapo_neg else; its
 *                                                             gradient is the policy gradient at r = 1 and fades away from there
 *   gpg      -A logp                                          arXiv 2504.02546, eq. 6: no ratio and no bound
 *   gmpo     -s A, s = exp(mean of d')                        GMPO, arXiv 2507.20673, eq. 4 and 5: d' is logp - old, at most clip_high for
 *                                                             A > 0 and at least -clip_low for A < 0; a bounded token has no gradient
 *   vespo    -phi(w) A logp, phi without gradient             VESPO, arXiv 2602.10693: phi(w) = e^l w^k e^(-l w), w the product of a
 *                                                             sample's ratios in [1e-8, e^20]; k and l by the sign of A
 *   dppo_tv  -min(r, c) A logp, both without gradient, or 0   DPPO, arXiv 2602.04879: 0 where p - p_old is above clip_high for A > 0, or
 *   dppo_kl                                                   p_old - p above clip_low for A <= 0; of dppo_kl so the KL of "this token or
 *                                                             another" with p on that side. c is clip_dual (0: no such bound)
 *   dro      -A logp + dro_beta / 2 (logp - old)^2            arXiv 2405.19107, eq. 6; verl's dro
 * ppo has a second bound, clip_dual (0: none): a token of A < 0 has at most -clip_dual A, without gradient beyond. Dual clip, arXiv
 * 1912.09729, eq. 5; verl's clip_ratio_c, and TRL's delta where that is above 1 + clip_high. */
enum clip_form {
    CLIP_PPO,
    CLIP_CISPO,
    CLIP_ATROPOS,
    CLIP_SAPO,
    CLIP_GPG,
    CLIP_GMPO,
    CLIP_VESPO,
    CLIP_DPPO_TV,
    CLIP_DPPO_KL,
    CLIP_DRO,
};
/* The penalty of a token, x = logp_ref - logp, q = exp(logp - logp_old) of the token, all with their gradient:
 *   k3        e^x - x - 1        Schulman, "Approximating KL divergence", 2020; DeepSeekMath, arXiv 2402.03300, eq. 4
 *   k1        -x                 the same; the expectation of its gradient is 0
 *   k2        x^2 / 2            the same
 *   k1_ratio  q (-x)             open-instruct's estimator 3
 *   k3_ratio  q (e^x - x - 1)    DeepSeek-V3.2, arXiv 2512.02556, sec. 3.1: where samples are of other weights, and at q = 1, the gradient is
 *                                that of the KL; TRL's use_bias_correction_kl
 *   abs        |x|               verl's kl_penalty
 *   k3+        e^x - x - 1       its value, with the gradient of k2, which is the KL's at q = 1 (verl's straight-through form)
 * open-instruct's numbers 0, 1, 2, 3 are k1, k2, k3, k1_ratio. */
enum kl_form {
    KL_K3,
    KL_K1,
    KL_K2,
    KL_K1_RATIO,
    KL_K3_RATIO,
    KL_ABS,
    KL_K3_THROUGH,
};
struct policy_form {
    enum clip_form clip;
    enum kl_form kl;
    float clip_low, clip_high;    // the ratio is clipped to [1 - clip_low, 1 + clip_high]
    float beta;                   // times the penalty; above 0 needs log-probs of a reference
    // with ppo, the ratio counts at most this much where the advantage is below 0; with dppo, everywhere; 0: no such bound
    float clip_dual;
    float sapo_pos, sapo_neg;        // sapo's temperatures, above 0
    float vespo_k[2], vespo_l[2];    // vespo's k and lambda: of advantages from 0 on, and below
    float dro_beta;
};
/* A token: its log-prob now and the one it is compared with, its ratio r (exp(logp - old), or what the tokens of its sample share), and
 * its advantage. */
struct token_point {
    double logp, old, r, adv;
};
struct token_term {
    double loss, coef;    // and its derivative by logp
};

/* Is the ratio of this form always one of a whole sample's tokens? */
BOTH_SIDES static inline bool policy_form_whole(const struct policy_form *f)
{
    return f->clip == CLIP_GMPO || f->clip == CLIP_VESPO;
}

/* DPPO's bound: how far the token's probability has moved, as the form measures it, and to which side. */
BOTH_SIDES static inline int dppo_bound(const struct policy_form *f, const struct token_point *p)
{
    double now = exp(p->logp), was = exp(p->old), far = fabs(now - was);
    if (p->adv > 0 ? !(now > was) : !(now < was))
        return 0;
    if (f->clip == CLIP_DPPO_KL)    // verl's 1e-8
        far = was * (p->old - p->logp) + (1 - was) * log((1 - was + 1e-8) / (1 - now + 1e-8));
    return p->adv > 0 ? far > (double)f->clip_high : far > (double)f->clip_low ? -1 : 0;
}

/* Which end of the clip range bounds a token: 1 the upper one, -1 the lower one, 0 neither. With CLIP_CISPO
 * its weight is bounded, and it keeps a gradient; with the others it has none. */
BOTH_SIDES static inline int policy_bound(const struct policy_form *f, const struct token_point *p)
{
    double r = f->clip == CLIP_GMPO ? 1 + (p->logp - p->old) : p->r;    // its bounds are of the token's logarithm
    int side = r > 1 + (double)f->clip_high ? 1 : r < 1 - (double)f->clip_low ? -1 : 0;
    switch (f->clip) {
    case CLIP_PPO: return p->adv > 0 ? side > 0 : !(p->adv < 0) ? 0 : side < 0 ? -1 : f->clip_dual > 0 && r > (double)f->clip_dual;
    case CLIP_GMPO: return p->adv > 0 ? side > 0 : p->adv < 0 && side < 0 ? -1 : 0;
    case CLIP_DPPO_TV:
    case CLIP_DPPO_KL: return dppo_bound(f, p);
    case CLIP_ATROPOS: return side > 0;
    case CLIP_SAPO:
    case CLIP_GPG:
    case CLIP_VESPO:
    case CLIP_DRO: return 0;
    case CLIP_CISPO: break;
    }
    return side;
}

/* That end for counts: a token without an advantage is not clipped. */
BOTH_SIDES static inline int policy_side(const struct policy_form *f, const struct token_point *p)
{
    return p->adv == 0 ? 0 : policy_bound(f, p);
}

/* SAPO's gate and its derivative by logp, times -adv. Where the ratio has overflowed the derivative is 0. */
BOTH_SIDES static inline struct token_term sapo_term(const struct policy_form *f, double r, double adv)
{
    double tau = adv > 0 ? (double)f->sapo_pos : (double)f->sapo_neg, z = tau * (r - 1), e = exp(-fabs(z));
    double gate = 4 / tau * (z < 0 ? e : 1) / (1 + e), slope = e == 0 ? 0 : 4 * e / ((1 + e) * (1 + e)) * r;
    struct token_term t = { -gate * adv, -slope * adv };
    return t;
}

/* VESPO's weight of a sample whose ratios have the product w. */
BOTH_SIDES static inline double vespo_weight(const struct policy_form *f, double w, double adv)
{
    int side = adv >= 0 ? 0 : 1;
    double k = (double)f->vespo_k[side], l = (double)f->vespo_l[side], least = 1e-8, most = exp(20.0);
    w = w < least ? least : w > most ? most : w;
    return exp(l + k * log(w) - l * w);
}

/* c times the policy gradient, c without a gradient of its own. */
BOTH_SIDES static inline struct token_term weighed_term(double c, const struct token_point *p)
{
    struct token_term t = { -c * p->adv * p->logp, -c * p->adv };
    return t;
}

/* The policy term of a token. A NaN is passed on, not hidden. */
BOTH_SIDES static inline struct token_term policy_term(const struct policy_form *f, const struct token_point *p)
{
    int side = policy_bound(f, p);
    double r = p->r, adv = p->adv, high = f->clip == CLIP_PPO && adv < 0 ? (double)f->clip_dual : 1 + (double)f->clip_high;
    double c = side > 0 ? high : side < 0 ? 1 - (double)f->clip_low : r, d = p->logp - p->old;
    struct token_term t = { -c * adv, side ? 0 : -r * adv };
    switch (f->clip) {
    case CLIP_PPO:
    case CLIP_ATROPOS: break;
    case CLIP_CISPO: t = weighed_term(c, p); break;
    case CLIP_SAPO: t = sapo_term(f, r, adv); break;
    case CLIP_GPG: t = weighed_term(1, p); break;
    case CLIP_GMPO: t.loss = adv == 0 ? 0 : -r * adv, t.coef = side ? 0 : t.loss; break;
    case CLIP_VESPO: t = weighed_term(vespo_weight(f, r, adv), p); break;
    case CLIP_DPPO_TV:
    case CLIP_DPPO_KL:
        t = weighed_term(side || adv == 0 ? 0 : f->clip_dual > 0 && r > (double)f->clip_dual ? (double)f->clip_dual : r, p);
        break;
    case CLIP_DRO: t.loss = -adv * p->logp + (double)f->dro_beta / 2 * d * d, t.coef = -adv + (double)f->dro_beta * d; break;
    }
    return t;
}

/* The penalty of a token, without beta: x = logp_ref - logp, q its own ratio. */
BOTH_SIDES static inline struct token_term kl_term(const struct policy_form *f, double x, double q)
{
    double k3 = exp(x) - x - 1;
    struct token_term t = { k3, 1 - exp(x) };
    switch (f->kl) {
    case KL_K3: break;
    case KL_K1: t.loss = -x, t.coef = 1; break;
    case KL_K2: t.loss = x * x / 2, t.coef = -x; break;
    case KL_K1_RATIO: t.loss = -q * x, t.coef = q * (1 - x); break;
    case KL_K3_RATIO: t.loss = q * k3, t.coef = q * (k3 + 1 - exp(x)); break;
    case KL_ABS: t.loss = fabs(x), t.coef = x > 0 ? -1 : x < 0 ? 1 : -x; break;
    case KL_K3_THROUGH: t.coef = -x; break;
    }
    return t;
}
