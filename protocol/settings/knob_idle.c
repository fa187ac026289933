/* Settings that were given but have no effect, because another setting that they depend on has the wrong value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/settings/export_kinds.h"
#include "protocol/settings/knobs.h"

/* Does every device's name begin with this? False while the devices are still to be chosen. */
static bool devices_all(const struct run_config *c, const char *kind)
{
    for (const char *at = c->devices; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, kind, strlen(kind)) != 0)
            return false;
    return true;
}

static bool ends_by_steps(const struct run_config *c)
{
    return c->max_steps > 0;
}
static bool on_gpus(const struct run_config *c)
{
    return devices_all(c, "cuda:");
}
static bool on_cpus(const struct run_config *c)
{
    return devices_all(c, "cpu:");
}
static bool one_trainer(const struct run_config *c)
{
    return c->num_trainers == 1;
}
static bool one_host(const struct run_config *c)
{
    return c->trainers_per_node > 0 && run_config_n_host(c) == 1;
}
static bool none_joins(const struct run_config *c)
{
    return run_config_n_host(c) == 1;
}
static bool weights_stay(const struct run_config *c)
{
    return !run_config_travels(c);
}
static bool in_logical_time(const struct run_config *c)
{
    return !c->free_running;
}
static bool no_gap(const struct run_config *c)
{
    return strcmp(c->fill_gap, "off") != 0 && !run_config_gap_possible(c);
}
static bool has_budget(const struct run_config *c)
{
    return c->token_budget > 0;
}
static bool no_punishment(const struct run_config *c)
{
    return !c->soft_over_length_punishment;
}
static bool not_batch(const struct run_config *c)
{
    return strcmp(c->advantages, "batch") != 0;
}
static bool not_constant(const struct run_config *c)
{
    return strcmp(c->loss_variation, "constant") != 0;
}
static bool has_clip(const struct run_config *c, const char *form)
{
    return strcmp(c->clip_form, form) == 0;
}
static bool no_range(const struct run_config *c)
{
    return has_clip(c, "sapo") || has_clip(c, "gpg") || has_clip(c, "vespo") || has_clip(c, "dro");
}
static bool not_dual(const struct run_config *c)
{
    return !has_clip(c, "ppo") && !has_clip(c, "dppo_tv") && !has_clip(c, "dppo_kl");
}
static bool own_ratio(const struct run_config *c)
{
    return has_clip(c, "gmpo") || has_clip(c, "vespo") || has_clip(c, "gpg") || has_clip(c, "dro");
}
static bool not_vespo(const struct run_config *c)
{
    return !has_clip(c, "vespo");
}
static bool not_dro(const struct run_config *c)
{
    return !has_clip(c, "dro");
}
static bool not_sapo(const struct run_config *c)
{
    return !has_clip(c, "sapo");
}
static bool no_kl_form(const struct run_config *c)
{
    return !(c->beta > 0) || !not_batch(c);
}
static bool no_reference(const struct run_config *c)
{
    return !(c->beta > 0);
}
static bool no_teacher(const struct run_config *c)
{
    return !c->teacher[0];
}
static bool reference_stays(const struct run_config *c)
{
    return no_reference(c) || c->ref_update_steps == 0;
}
static bool no_clamp(const struct run_config *c)
{
    return isnan(c->rho_clamp[1]);
}
static bool no_mask(const struct run_config *c)
{
    return isnan(c->rho_mask[1]);
}
static bool own_engine(const struct run_config *c)
{
    return !c->engine_url[0];
}
static bool asks_nobody(const struct run_config *c)
{
    return own_engine(c) && !c->weight_bridge_file[0];
}
static bool temperature_stays(const struct run_config *c)
{
    return !(c->temperature_end > 0);
}
static bool length_stays(const struct run_config *c)
{
    return c->max_new_tokens_start == 0;
}
static bool no_decay(const struct run_config *c)
{
    return !(c->weight_decay > 0);
}
static bool not_adam(const struct run_config *c)
{
    return strcmp(c->optimizer, "adafactor") == 0;
}
static bool not_wsd(const struct run_config *c)
{
    return strcmp(c->lr_schedule, "wsd") != 0;
}
static bool rate_constant(const struct run_config *c)
{
    return strcmp(c->lr_schedule, "constant") == 0;
}
static bool no_adapter(const struct run_config *c)
{
    return c->lora_rank == 0 && !c->lora_adapter[0];
}
static bool given_adapter(const struct run_config *c)
{
    return no_adapter(c) || c->lora_adapter[0];
}
static bool no_code(const struct run_config *c)
{
    return !reward_has(c, "code") && !reward_has(c, "verify");
}
static bool no_curriculum(const struct run_config *c)
{
    return c->curriculum_levels == 1;
}
static bool no_environment(const struct run_config *c)
{
    return !c->environment[0];
}
static bool no_harness(const struct run_config *c)
{
    return run_config_harness(c) == NULL;
}
static bool no_answers(const struct run_config *c)
{
    return no_environment(c) || !no_harness(c);
}
static bool other_reward(const struct run_config *c)
{
    return no_environment(c) || !reward_has(c, "environment");
}
static bool no_wait(const struct run_config *c)
{
    return !reward_has(c, "code") && !reward_has(c, "program:");
}
/* A single reward that is not a verifier. */
static bool no_verifier(const struct run_config *c)
{
    static const char *const other[] = { "think_answer_tags", "boxed", "math", "code", "code_share", "environment" };
    for (size_t i = 0; i < ARRAY_SIZE(other); i++)
        if (strcmp(c->reward_type, other[i]) == 0)
            return true;
    return strncmp(c->reward_type, "program:", strlen("program:")) == 0 && !strstr(c->reward_type, " + ");
}
static bool no_format(const struct run_config *c)
{
    return no_verifier(c) || !(c->format_reward > 0);
}
static bool no_penalty(const struct run_config *c)
{
    return no_verifier(c) || !c->non_stop_penalty;
}
static bool no_tags(const struct run_config *c)
{
    return !reward_has(c, "think_answer_tags");
}
static bool no_service(const struct run_config *c)
{
    return !c->code_verifier_api_url[0];
}
static bool no_eval(const struct run_config *c)
{
    return !c->eval_dataset[0];
}
static bool no_metrics(const struct run_config *c)
{
    return !c->metrics_listen[0];
}
static bool no_serve(const struct run_config *c)
{
    return !c->serve[0];
}
static bool no_door(const struct run_config *c)
{
    return no_serve(c) && no_metrics(c) && !c->environments[0];
}
static bool no_webhook(const struct run_config *c)
{
    return !c->alert_webhook_file[0];
}
static bool no_wandb(const struct run_config *c)
{
    return strcmp(c->wandb, "off") == 0;
}
static bool no_project(const struct run_config *c)
{
    return no_wandb(c) && !c->eval_save_dir[0];
}

static bool no_exporter(const struct run_config *c)
{
    for (int i = 0; i < EXPORT_KIND_N; i++)
        if (export_wanted(c, (enum export_kind)i))
            return false;
    return true;
}
static bool rubrics_stay(const struct run_config *c)
{
    return !c->apply_evolving_rubric_reward;
}

#define CURRICULUM_WHY "'curriculum_levels' is 1, so all prompts are of one level"
#define EVAL_WHY "there is no evaluation set; 'eval_dataset' names them"
#define VERIFY_WHY "'reward_type' has no verifier: verify, verify:NAME"
#define OWN_ENGINE_WHY "there is no 'engine_url', so no external engine is asked"
#define SERVE_WHY "'serve' is not set, so the policy is not served"
#define WANDB_WHY "'wandb' is off; 'wandb' online or offline uses it"

static const struct idle_rule {
    const char *name;
    bool (*idle)(const struct run_config *c);
    const char *why;
} rules[] = {
    { "project", no_project, "it names a wandb project and a folder in 'eval_save_dir', and neither is set" },
    { "num_episodes", ends_by_steps, "'max_steps' ends the run; with 'max_steps' 0 'num_episodes' decides" },
    { "weights", weights_stay, "no weights are transferred: each device samples with its own" },
    { "collective", one_trainer, "there is one trainer, which exchanges nothing; with 'num_trainers' above 1 they do" },
    { "ranks_timeout_s", one_trainer, "there is one trainer, which waits for no other" },
    { "join_timeout_s", none_joins, "all trainers are on this host, so none comes with a node" },
    { "publish_timeout_s", weights_stay, "no weights are transferred: each device samples with its own" },
    { "zero_stage", one_trainer, "there is one trainer, which keeps everything; with 'num_trainers' above 1 they share it" },
    { "trainers_per_node", one_host,
      "there are no more trainers than that, and all are on the head's machine; a larger 'num_trainers' goes on to nodes" },
    { "threads", on_gpus, "it applies to CPU devices, and this run uses GPUs only" },
    { "max_staleness", in_logical_time, "it applies to 'free_running' only; otherwise 'n_behind' bounds the age of samples" },
    { "fill_gap", no_gap, "it is for producers that do not train, with 'n_behind' above 0 and one device each, without an environment" },
    { "train_microbatch_size", has_budget, "'token_budget' overrides it; with 'token_budget' 0 'train_microbatch_size' decides" },
    { "cache_length", no_punishment, "'soft_over_length_punishment' is false" },
    { "ppb_as_upstream", not_batch, "it is for 'advantages' batch, as 'algo' REINFORCE_PPB sets them" },
    { "loss_constant", not_constant, "it is for 'loss_variation' constant" },
    { "ratio_level", own_ratio, "'clip_form' gmpo and vespo take the response's ratio, gpg and dro none" },
    { "clip_eps_low", no_range, "'clip_form' sapo, gpg, vespo and dro have no range" },
    { "clip_eps_high", no_range, "'clip_form' sapo, gpg, vespo and dro have no range" },
    { "clip_dual", not_dual, "it is for 'clip_form' ppo, dppo_tv and dppo_kl" },
    { "vespo_k_pos", not_vespo, "it is for 'clip_form' vespo" },
    { "vespo_lambda_pos", not_vespo, "it is for 'clip_form' vespo" },
    { "vespo_k_neg", not_vespo, "it is for 'clip_form' vespo" },
    { "vespo_lambda_neg", not_vespo, "it is for 'clip_form' vespo" },
    { "dro_beta", not_dro, "it is for 'clip_form' dro" },
    { "sapo_temperature_pos", not_sapo, "it is for 'clip_form' sapo" },
    { "sapo_temperature_neg", not_sapo, "it is for 'clip_form' sapo" },
    { "kl_estimator", no_kl_form, "there is no penalty in the loss: 'kl_coeff' is 0, or 'advantages' batch has it in them, as k3" },
    { "teacher_coeff", no_teacher, "there is no 'teacher'" },
    { "reward_coeff", no_teacher, "there is no 'teacher'" },
    { "ref_update_steps", no_reference, "'kl_coeff' is 0, so there is no reference model" },
    { "ref_update_alpha", reference_stays, "the reference stays: 'kl_coeff' or 'ref_update_steps' is 0" },
    { "rho_clamp_level", no_clamp, "'rho_clamp' is none" },
    { "rho_mask_level", no_mask, "'rho_mask' is none" },
    { "max_new_tokens_steps", length_stays, "'max_new_tokens_start' is 0: the longest completion is the same from the start" },
    { "temperature_steps", temperature_stays, "'temperature_end' is 0: the temperature stays" },
    { "weight_decay_on", no_decay, "'weight_decay' is 0" },
    { "adam_beta1", not_adam, "'optimizer' is adafactor" },
    { "adam_beta2", not_adam, "'optimizer' is adafactor, whose own follows the step" },
    { "adam_eps", not_adam, "'optimizer' is adafactor" },
    { "lr_decay_share", not_wsd, "it is for 'lr_schedule' wsd" },
    { "lr_min_ratio", rate_constant, "'lr_schedule' is constant; the others use it" },
    { "offload_optimizer", on_cpus, "on CPUs the optimizer's state is in host memory anyway; for less memory there is 'recompute_full'" },
    { "bridge_interval", own_engine, "there is no 'engine_url', so weights are given to nobody" },
    { "engine_token_file", own_engine, OWN_ENGINE_WHY },
    { "engine_timeout_s", asks_nobody, "there is no 'engine_url' and no 'weight_bridge_file', so nothing is waited for" },
    { "engine_patience_s", asks_nobody, "there is no 'engine_url' and no 'weight_bridge_file', so nothing is waited for" },
    { "engine_helper", own_engine, OWN_ENGINE_WHY },
    { "lora_dropout", no_adapter, "'lora_rank' is 0: all weights are trained" },
    { "lora_alpha", given_adapter, "'lora_rank' is 0, or 'lora_adapter' has its own" },
    { "lora_target_modules", given_adapter, "'lora_rank' is 0, or 'lora_adapter' has its own" },
    { "code_verifier_api_url", no_code, "no part of 'reward_type' is code or code_share" },
    { "reward_timeout_s", no_wait, "no part of 'reward_type' is code, code_share or a program" },
    { "response_format_tags", no_tags, "no part of 'reward_type' is think_answer_tags" },
    { "verification_reward", no_verifier, VERIFY_WHY },
    { "remap_verifier", no_verifier, VERIFY_WHY },
    { "format_reward", no_verifier, VERIFY_WHY },
    { "additive_format_reward", no_format, "'format_reward' is 0, or 'reward_type' has no verifier" },
    { "non_stop_penalty", no_verifier, VERIFY_WHY },
    { "non_stop_penalty_value", no_penalty, "'non_stop_penalty' is false, or 'reward_type' has no verifier" },
    { "only_reward_good_outputs", no_verifier, VERIFY_WHY },
    { "math_symbolic", no_verifier, VERIFY_WHY },
    { "max_length_verifier_max_length", no_verifier, VERIFY_WHY },
    { "environment_reward", other_reward, "no part of 'reward_type' is environment" },
    { "curriculum_start", no_curriculum, CURRICULUM_WHY },
    { "curriculum_pass_rate", no_curriculum, CURRICULUM_WHY },
    { "curriculum_easier_rate", no_curriculum, CURRICULUM_WHY },
    { "curriculum_groups", no_curriculum, CURRICULUM_WHY },
    { "curriculum_column", no_curriculum, CURRICULUM_WHY },
    { "environment_processes", no_environment, "there is no 'environment'" },
    { "environment_timeout_s", no_answers, "there is no 'environment' that answers turns" },
    { "session_timeout_s", no_harness, "'environment' is no harness" },
    { "session_restarts", no_harness, "'environment' is no harness" },
    { "max_turns", no_environment, "there is no 'environment', so a sample has one turn" },
    { "max_turn_tokens", no_environment, "there is no 'environment', so a sample has one turn; 'max_new_tokens' bounds it" },
    { "llm_judge_url", no_verifier, VERIFY_WHY },
    { "llm_judge_model", no_verifier, VERIFY_WHY },
    { "llm_judge_key_file", no_verifier, VERIFY_WHY },
    { "llm_judge_template", no_verifier, VERIFY_WHY },
    { "llm_judge_max_tokens", no_verifier, VERIFY_WHY },
    { "llm_judge_max_context_length", no_verifier, VERIFY_WHY },
    { "llm_judge_temperature", no_verifier, VERIFY_WHY },
    { "llm_judge_timeout", no_verifier, VERIFY_WHY },
    { "llm_judge_budget", no_verifier, VERIFY_WHY },
    { "max_active_rubrics", rubrics_stay, "'apply_evolving_rubric_reward' is false, so no criteria are written" },
    { "code_max_execution_time", no_verifier, VERIFY_WHY },
    { "code_pass_rate_reward_threshold", no_verifier, VERIFY_WHY },
    { "code_apply_perf_penalty", no_verifier, VERIFY_WHY },
    { "code_verifier_key_file", no_service, "'code_verifier_api_url' is not set" },
    { "eval_interval", no_eval, EVAL_WHY },
    { "eval_temperature", no_eval, EVAL_WHY },
    { "eval_top_p", no_eval, EVAL_WHY },
    { "eval_max_new_tokens", no_eval, EVAL_WHY },
    { "eval_save_dir", no_eval, EVAL_WHY },
    { "wandb_entity", no_wandb, WANDB_WHY },
    { "wandb_base_url", no_wandb, WANDB_WHY },
    { "wandb_group", no_wandb, WANDB_WHY },
    { "wandb_tags", no_wandb, WANDB_WHY },
    { "wandb_notes", no_wandb, WANDB_WHY },
    { "wandb_ca", no_wandb, WANDB_WHY },
    { "wandb_completions", no_wandb, WANDB_WHY },
    { "wandb_console", no_wandb, WANDB_WHY },
    { "wandb_host", no_wandb, WANDB_WHY },
    { "alert_webhook_format", no_webhook, "'alert_webhook_file' is not set, so nothing is sent" },
    { "serve_token_file", no_serve, SERVE_WHY },
    { "serve_tls_cert", no_serve, SERVE_WHY },
    { "serve_tls_key", no_serve, SERVE_WHY },
    { "serve_samples", no_serve, SERVE_WHY },
    { "allowed_hosts", no_door, "none of 'serve', 'environments' and 'metrics_listen' is set, so nothing is served" },
    { "metric_names", no_exporter, "the run has no exporter; 'rollcall export' alone uses it" },
    { "metrics_token_file", no_metrics, "'metrics_listen' is not set, so nothing is served" },
};

static bool is_default(const struct knob *k, const struct run_config *c)
{
    struct run_config d;
    struct buf now = BUF_INIT, def = BUF_INIT;
    run_config_init(&d);
    bool same = strcmp(knob_text(k, c, &now), knob_text(k, &d, &def)) == 0;
    buf_release(&now);
    buf_release(&def);
    return same;
}

const char *knob_idle(const struct knob *k, const struct run_config *c)
{
    const char *why = k->no_effect;
    for (size_t i = 0; !why && i < ARRAY_SIZE(rules); i++)
        if (strcmp(rules[i].name, k->name) == 0 && rules[i].idle(c))
            why = rules[i].why;
    return why && !is_default(k, c) ? why : NULL;
}

void knobs_note_idle(const struct run_config *c, enum knob_source from, struct buf *notes)
{
    for (int i = 0; i < n_knobs; i++) {
        const char *why = c->source[i] >= from ? knob_idle(&knobs[i], c) : NULL;
        if (why)
            buf_fmt(notes, "note: '%s' has no effect: %s\n", knobs[i].name, why);
    }
}
