#include "protocol/settings/preset.h"
#include <math.h>
#include <string.h>
#include "protocol/settings/knobs.h"

/* Each row: where `of` has the value `is`, the setting `name` gets `value`.
 *
 * The algorithms, as compositions. What a row does not name is GRPO's: deviation, token ratio, PPO's clip at 0.2, sample level, k3 at 0.01
 * (ColossalChat's zero-bubble launcher).
 *   DAPO     ColossalChat's README; arXiv 2503.14476
 *   DR_GRPO  arXiv 2503.20783, section 3.2: no deviation, a constant divisor, no penalty
 *   GSPO     arXiv 2507.18071, section 5.1: clip 3e-4 and 4e-4, no penalty
 *   CISPO    MiniMax-M1, arXiv 2506.13585, section 3.1: no lower bound, no penalty, token level; the upper bound is 5 as ScaleRL found best,
 *            arXiv 2510.13786 (MiniMax does not say theirs). No sample is skipped: every token is to keep its gradient
 *   SAPO     arXiv 2511.20347, section 4, and TRL's defaults: the soft gate at 1 and 1.05, no penalty. No sample is skipped: the gate does that
 *   LUSPO    arXiv 2602.05261, section 5.1: GSPO with each response's term times its length, clip 2e-3 and 2.5e-3, no penalty. TRL's form
 *            divides by the number of responses, which is a constant divisor of 1
 *   GMPO     arXiv 2507.20673, section 4: the geometric mean of ratios, each kept in e^-0.4 to e^0.4; no penalty
 *   VESPO    arXiv 2602.10693, and TRL's defaults: the soft weight of a whole response, token level, no penalty. No sample is skipped
 *   DPPO_TV, DPPO_KL
 *            arXiv 2602.04879, as verl has them: bounds of 0.2 on a probability's change, ratios of at most 20, token level, no penalty
 *   OPO      arXiv 2505.23585, section 3: the baseline of least variance, of which lengths are the measure; no penalty
 *   MAXRL    arXiv 2602.02710: the gradient of the log of the pass rate, of which GRPO's is the first order; no penalty
 *   GRPO_PASSK, REINFORCE_PP
 *            verl's grpo_passk (arXiv 2503.19595) and reinforce_plus_plus (arXiv 2501.03262)
 *
 * The presets: an algorithm with the settings that its origin trains with.
 *   open_instruct  the defaults of grpo_fast.py as of August 2026. Its old log-probs are those of the step itself, and what samples are
 *                  off by is bounded by rho; active sampling is off, so batches shrink by groups without spread
 *   atropos        the defaults of the example trainer of NousResearch/atropos 0.4.0
 *   dr_grpo        examples/qwen2.5-math-7b.sh of sail-sg/understand-r1-zero, and the paper's table of hyper-parameters
 *   gspo           section 5.1: four optimizer steps of a rollout batch
 *   cispo          MiniMax-M1, section 3.1: its AdamW
 *   trl            the defaults of GRPOConfig of TRL 1.16, with the correction that it makes for samples of vLLM
 *   verl           verl 0.9.1's ppo_trainer.yaml with adv_estimator grpo, since the default one has a critic: four updates of a rollout batch.
 *                  Its num_generations of 1 is left to be chosen
 *   openrlhf       the defaults of OpenRLHF 0.11.2's train_ppo_ray with the estimator reinforce_baseline, for that reason. Its penalty is in
 *                  the reward and k1, where it is k3 here; it warms up over 3 % of the steps, which is left to be chosen as warmup_steps.
 *                  Its 128 responses of an update are 16 prompts of 8 responses, and its one response of a prompt needs a critic */
static const struct preset_row {
    const char *of, *is, *name, *value;
} rows[] = {
    // clang-format off
    { "algo", "DAPO", "kl_coeff", "0" },
    { "algo", "DAPO", "clip_eps_low", "0.2" },
    { "algo", "DAPO", "clip_eps_high", "0.28" },
    { "algo", "DAPO", "loss_variation", "token_level" },
    { "algo", "DAPO", "filter_range", "[0.01, 0.99]" },
    { "algo", "DAPO", "soft_over_length_punishment", "true" },
    { "algo", "DAPO", "filter_truncated_response", "true" },
    { "algo", "RLOO", "advantages", "leave_one_out" },
    { "algo", "REINFORCE_PPB", "advantages", "batch" },
    { "algo", "DR_GRPO", "advantages", "centered" },
    { "algo", "DR_GRPO", "loss_variation", "constant" },
    { "algo", "DR_GRPO", "kl_coeff", "0" },
    { "algo", "GSPO", "ratio_level", "sequence" },
    { "algo", "GSPO", "clip_eps_low", "3e-4" },
    { "algo", "GSPO", "clip_eps_high", "4e-4" },
    { "algo", "GSPO", "kl_coeff", "0" },
    { "algo", "CISPO", "clip_form", "cispo" },
    { "algo", "CISPO", "clip_eps_low", "1" },
    { "algo", "CISPO", "clip_eps_high", "4" },
    { "algo", "CISPO", "loss_variation", "token_level" },
    { "algo", "CISPO", "kl_coeff", "0" },
    { "algo", "CISPO", "skip_threshold", "0" },
    { "algo", "SAPO", "clip_form", "sapo" },
    { "algo", "SAPO", "kl_coeff", "0" },
    { "algo", "SAPO", "skip_threshold", "0" },
    { "algo", "LUSPO", "ratio_level", "sequence" },
    { "algo", "LUSPO", "clip_eps_low", "2e-3" },
    { "algo", "LUSPO", "clip_eps_high", "2.5e-3" },
    { "algo", "LUSPO", "loss_variation", "constant" },
    { "algo", "LUSPO", "loss_constant", "1" },
    { "algo", "LUSPO", "kl_coeff", "0" },
    { "algo", "GMPO", "clip_form", "gmpo" },
    { "algo", "GMPO", "clip_eps_low", "0.4" },
    { "algo", "GMPO", "clip_eps_high", "0.4" },
    { "algo", "GMPO", "kl_coeff", "0" },
    { "algo", "VESPO", "clip_form", "vespo" },
    { "algo", "VESPO", "loss_variation", "token_level" },
    { "algo", "VESPO", "kl_coeff", "0" },
    { "algo", "VESPO", "skip_threshold", "0" },
    { "algo", "DPPO_TV", "clip_form", "dppo_tv" },
    { "algo", "DPPO_TV", "clip_dual", "20" },
    { "algo", "DPPO_TV", "loss_variation", "token_level" },
    { "algo", "DPPO_TV", "kl_coeff", "0" },
    { "algo", "DPPO_TV", "skip_threshold", "0" },
    { "algo", "DPPO_KL", "clip_form", "dppo_kl" },
    { "algo", "DPPO_KL", "clip_dual", "20" },
    { "algo", "DPPO_KL", "loss_variation", "token_level" },
    { "algo", "DPPO_KL", "kl_coeff", "0" },
    { "algo", "DPPO_KL", "skip_threshold", "0" },
    { "algo", "OPO", "advantages", "length_weighted" },
    { "algo", "OPO", "kl_coeff", "0" },
    { "algo", "MAXRL", "advantages", "over_mean" },
    { "algo", "MAXRL", "kl_coeff", "0" },
    { "algo", "GRPO_PASSK", "advantages", "best" },
    { "algo", "REINFORCE_PP", "advantages", "whitened" },

    { "preset", "open_instruct", "advantages", "centered" },
    { "preset", "open_instruct", "loss_variation", "token_level" },
    { "preset", "open_instruct", "clip_eps_low", "0.2" },
    { "preset", "open_instruct", "clip_eps_high", "0.272" },
    { "preset", "open_instruct", "kl_coeff", "0.05" },
    { "preset", "open_instruct", "kl_estimator", "k3" },
    { "preset", "open_instruct", "old_logprobs", "current" },
    { "preset", "open_instruct", "rho_clamp", "[0, 2]" },
    { "preset", "open_instruct", "skip_threshold", "0" },
    { "preset", "open_instruct", "filter_no_spread", "true" },
    { "preset", "open_instruct", "dynamic_batching", "false" },
    { "preset", "open_instruct", "learning_rate", "2e-5" },
    { "preset", "open_instruct", "lr_schedule", "linear" },
    { "preset", "open_instruct", "lr_min_ratio", "0" },
    { "preset", "open_instruct", "weight_decay", "0" },
    { "preset", "open_instruct", "max_norm", "1" },
    { "preset", "open_instruct", "num_generations", "4" },
    { "preset", "open_instruct", "inference_batch_size", "16" },
    { "preset", "open_instruct", "train_batch_size", "16" },
    { "preset", "open_instruct", "n_behind", "8" },
    { "preset", "open_instruct", "max_prompt_tokens", "256" },
    { "preset", "open_instruct", "max_new_tokens", "256" },
    { "preset", "atropos", "advantages", "deviation_population" },
    { "preset", "atropos", "clip_form", "atropos" },
    { "preset", "atropos", "loss_variation", "sample_level" },
    { "preset", "atropos", "kl_coeff", "0" },
    { "preset", "atropos", "skip_threshold", "0" },
    { "preset", "atropos", "learning_rate", "1e-5" },
    { "preset", "atropos", "lr_schedule", "constant" },
    { "preset", "atropos", "num_generations", "4" },
    { "preset", "atropos", "inference_batch_size", "16" },
    { "preset", "atropos", "train_batch_size", "16" },
    { "preset", "atropos", "max_new_tokens", "2048" },
    { "preset", "dr_grpo", "algo", "DR_GRPO" },
    { "preset", "dr_grpo", "skip_threshold", "0" },
    { "preset", "dr_grpo", "learning_rate", "1e-6" },
    { "preset", "dr_grpo", "lr_schedule", "constant" },
    { "preset", "dr_grpo", "weight_decay", "0" },
    { "preset", "dr_grpo", "adam_beta2", "0.95" },
    { "preset", "dr_grpo", "num_generations", "8" },
    { "preset", "dr_grpo", "inference_batch_size", "128" },
    { "preset", "dr_grpo", "train_batch_size", "128" },
    { "preset", "dr_grpo", "max_prompt_tokens", "1024" },
    { "preset", "dr_grpo", "max_new_tokens", "3000" },
    { "preset", "gspo", "algo", "GSPO" },
    { "preset", "gspo", "skip_threshold", "0" },
    { "preset", "gspo", "inference_batch_size", "64" },
    { "preset", "gspo", "train_batch_size", "16" },
    { "preset", "cispo", "algo", "CISPO" },
    { "preset", "cispo", "adam_beta2", "0.95" },
    { "preset", "cispo", "adam_eps", "1e-15" },
    { "preset", "trl", "loss_variation", "token_level" },
    { "preset", "trl", "clip_eps_low", "0.2" },
    { "preset", "trl", "clip_eps_high", "0.2" },
    { "preset", "trl", "kl_coeff", "0" },
    { "preset", "trl", "kl_estimator", "k3_ratio" },
    { "preset", "trl", "old_logprobs", "current" },
    { "preset", "trl", "rho_mask", "[0, 3]" },
    { "preset", "trl", "rho_mask_level", "sequence" },
    { "preset", "trl", "skip_threshold", "0" },
    { "preset", "trl", "learning_rate", "1e-6" },
    { "preset", "trl", "lr_schedule", "linear" },
    { "preset", "trl", "lr_min_ratio", "0" },
    { "preset", "trl", "weight_decay", "0" },
    { "preset", "trl", "max_norm", "1" },
    { "preset", "trl", "num_generations", "8" },
    { "preset", "trl", "inference_batch_size", "1" },
    { "preset", "trl", "train_batch_size", "1" },
    { "preset", "trl", "max_new_tokens", "512" },
    { "preset", "verl", "loss_variation", "token_level" },
    { "preset", "verl", "clip_eps_low", "0.2" },
    { "preset", "verl", "clip_eps_high", "0.2" },
    { "preset", "verl", "clip_dual", "3" },
    { "preset", "verl", "kl_coeff", "0" },
    { "preset", "verl", "skip_threshold", "0" },
    { "preset", "verl", "learning_rate", "1e-6" },
    { "preset", "verl", "lr_schedule", "constant" },
    { "preset", "verl", "weight_decay", "0.01" },
    { "preset", "verl", "max_norm", "1" },
    { "preset", "verl", "inference_batch_size", "1024" },
    { "preset", "verl", "train_batch_size", "256" },
    { "preset", "verl", "max_prompt_tokens", "512" },
    { "preset", "verl", "max_new_tokens", "512" },
    { "preset", "openrlhf", "algo", "REINFORCE_PPB" },
    { "preset", "openrlhf", "loss_variation", "token_level" },
    { "preset", "openrlhf", "clip_eps_low", "0.2" },
    { "preset", "openrlhf", "clip_eps_high", "0.2" },
    { "preset", "openrlhf", "kl_coeff", "0.01" },
    { "preset", "openrlhf", "skip_threshold", "0" },
    { "preset", "openrlhf", "learning_rate", "1e-6" },
    { "preset", "openrlhf", "lr_schedule", "cosine" },
    { "preset", "openrlhf", "lr_min_ratio", "0.1" },
    { "preset", "openrlhf", "weight_decay", "0" },
    { "preset", "openrlhf", "adam_beta2", "0.95" },
    { "preset", "openrlhf", "max_norm", "1" },
    { "preset", "openrlhf", "inference_batch_size", "1024" },
    { "preset", "openrlhf", "num_generations", "8" },
    { "preset", "openrlhf", "train_batch_size", "16" },
    // clang-format on
};

static bool from_default(const struct run_config *c, const char *name)
{
    struct error err;
    const struct knob *k = knob_find(name, &err);
    return c->source[k - knobs] <= FROM_PRESET;
}

static bool rows_apply(struct run_config *c, const char *of, const char *is, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(rows[i].of, of) == 0 && strcmp(rows[i].is, is) == 0 && from_default(c, rows[i].name)
            && !run_config_set(c, rows[i].name, rows[i].value, FROM_PRESET, NULL, err))
            return false;
    return true;
}

bool preset_apply(struct run_config *c, struct error *err)
{
    return rows_apply(c, "preset", c->preset, err)    // its algorithm
           && rows_apply(c, "algo", c->algo, err) && rows_apply(c, "preset", c->preset, err);
}
