/* hyper.c - a run's settings as the trainer wants them */
#include <math.h>
#include "protocol/settings/knobs.h"
#include "protocol/settings/preset.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/schedule.h"

/* Which of the setting's choices the text is; run_config_set has let no other in. */
static int choice(const char *name, const char *text)
{
    int i = knob_choice(name, text);
    BUG_IF(i < 0, "'%s' is no choice of '%s'", text, name);
    return i;
}

static struct rho_rule rho_rule(const double range[2], const char *name, const char *level)
{
    return (struct rho_rule){ range[0], range[1], (enum rho_level)choice(name, level) };
}

void trainer_hyper_of(struct trainer_hyper *h, const struct run_config *c, int64_t step, int64_t max_steps)
{
    struct schedule s = { .kind = (enum schedule_kind)choice("lr_schedule", c->lr_schedule),
                          .min_ratio = c->lr_min_ratio,
                          .n_warmup = c->warmup_steps,
                          .n_step = max_steps - c->warmup_steps,
                          .decay_share = c->lr_decay_share };
    struct policy_form form = { .clip = (enum clip_form)choice("clip_form", c->clip_form),
                                .kl = (enum kl_form)choice("kl_estimator", c->kl_estimator),
                                .clip_low = (float)c->clip_eps_low,
                                .clip_high = (float)c->clip_eps_high,
                                .beta = (float)c->beta,
                                .clip_dual = (float)c->clip_dual,
                                .sapo_pos = (float)c->sapo_temperature_pos,
                                .sapo_neg = (float)c->sapo_temperature_neg,
                                .vespo_k = { (float)c->vespo_k_pos, (float)c->vespo_k_neg },
                                .vespo_l = { (float)c->vespo_lambda_pos, (float)c->vespo_lambda_neg },
                                .dro_beta = (float)c->dro_beta };
    *h = (struct trainer_hyper){
        .advantages = (enum advantage_form)choice("advantages", c->advantages),
        .loss = (enum loss_variation)choice("loss_variation", c->loss_variation),
        .loss_constant = (double)(c->loss_constant > 0 ? c->loss_constant : c->max_new_tokens),
        .ratio = policy_form_whole(&form) ? RATIO_SEQUENCE : (enum ratio_level)choice("ratio_level", c->ratio_level),
        .old = (enum old_logprobs)choice("old_logprobs", c->old_logprobs),
        .form = form,
        .rho_clamp = rho_rule(c->rho_clamp, "rho_clamp_level", c->rho_clamp_level),
        .rho_mask = rho_rule(c->rho_mask, "rho_mask_level", c->rho_mask_level),
        .n_epoch = c->update_epochs,
        .n_mini = c->update_minibatches,
        .lr = schedule_lr(&s, c->learning_rate, step),
        .weight_decay = c->weight_decay,
        .decay_matrices = choice("weight_decay_on", c->weight_decay_on) == 1,
        .max_norm = c->max_norm,
        .ref_every = c->teacher[0] ? 0 : c->ref_update_steps,
        .ref_share = c->ref_update_alpha,
        .skip_threshold = c->skip_threshold,
        .teacher = c->teacher[0] ? c->teacher_coeff : 0,
        .reward_share = c->reward_coeff,
        .has_filter = !isnan(c->filter_range[0]) && !isnan(c->filter_range[1]),
        .filter_low = c->filter_range[0],
        .filter_high = c->filter_range[1],
        .filter_no_spread = c->filter_no_spread,
        .mask_truncated = c->filter_truncated_response,
        .ppb_as_coded = c->ppb_as_upstream,
        .token_budget = run_config_micro_tok(c),
    };
}

bool trainer_hyper_init_algo(struct trainer_hyper *h, const char *algo, struct error *err)
{
    struct run_config c;
    run_config_init(&c);
    if (!run_config_set(&c, "algo", algo, FROM_FLAG, NULL, err) || !preset_apply(&c, err))
        return false;
    trainer_hyper_of(h, &c, 0, 1);
    h->lr = c.learning_rate;
    h->token_budget = 0;
    return true;
}

void trainer_hyper_init(struct trainer_hyper *h)
{
    struct run_config c;
    struct error err = { 0 };
    run_config_init(&c);
    bool ok = trainer_hyper_init_algo(h, c.algo, &err);
    BUG_IF(!ok, "the preset of %s: %s", c.algo, err.text);
}
