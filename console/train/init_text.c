/* The run file that 'rollcall init' writes: settings with the reason for each. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "console/train/init.h"
#include "protocol/base/json_text.h"

static void quoted(struct buf *out, const char *text)
{
    json_text_print(out, text, strlen(text), JSON_TEXT_UTF8);    // a JSON string is a YAML string too
}

static void setting(struct buf *out, const char *name, const char *value)
{
    buf_fmt(out, "%s: ", name);
    quoted(out, value);
    buf_char(out, '\n');
}

/* Which system prompt, and why. */
static void system_text(const struct init *i, struct buf *out)
{
    const struct init_trial *a = &i->own, *b = &i->none;
    if (i->own.n == 0) {
        buf_str(out, "# system_prompt: none    # leaves the reward_type's own out, which is in force otherwise\n");
        return;
    }
    buf_fmt(out,
            "%ssystem_prompt: none    # of %" PRId64
            " answers %.1f %% were right without a system prompt, and %.1f %% with the reward_type's "
            "own,\n"
            "                       # which is in force %s\n",
            i->no_system ? "" : "# ", b->n * b->n_each, 100 * b->right, 100 * a->right,
            i->no_system ? "without this line" : "without such a line");
}

/* Passes over the data for four times as many steps as are expected. */
static int64_t episodes(const struct init *i)
{
    double rows = 4.0 * (double)i->n_step * (double)(i->prompts * i->n_device);
    return (int64_t)fmin(fmax(ceil(rows / (double)MAX(i->n_row, (int64_t)1)), 1), 1e6);
}

void init_text(const struct init *i, struct buf *out)
{
    const struct init_trial *seen = i->no_system ? &i->none : &i->own;
    int64_t often = MAX(i->n_step / 10, 1);
    buf_str(out,
            "# Written by 'rollcall init'. Every key is a setting of 'rollcall settings'; flags of 'rollcall train' take precedence.\n\n");
    setting(out, "model", i->model);
    setting(out, "dataset", i->dataset);
    buf_fmt(out, "reward_type: %s    # %s; see examples/RUNNING.md for others\n", i->reward,
            i->reward[0] == 'b' ? "the answer in \\boxed{} is compared with the data's" : "the program must pass the data's tests");
    system_text(i, out);
    if (i->eval[0]) {
        buf_str(out, "eval_dataset: { test: { path: ");
        quoted(out, i->eval);
        buf_str(out, ", limit: 200, temperature: 0 } }\n");
    } else {
        buf_str(out, "# eval_dataset: { held_out: { path: FILE, temperature: 0 } }    # prompts that are not trained on\n");
    }
    buf_fmt(out, "%seval_interval: %" PRId64 "    # steps; ten evaluations in all\n\n", i->eval[0] ? "" : "# ", often);

    setting(out, "devices", i->devices);
    if (i->n_device > 1)
        buf_fmt(out, "num_trainers: %d      # every device trains ...\nnum_inferencer: %d    # ... and samples, by turns\n", i->n_device,
                i->n_device);
    if (i->offload)
        buf_str(out, "offload_optimizer: true    # masters and moments do not fit on the GPU\n");
    buf_fmt(out,
            "inference_batch_size: %" PRId64 "         # prompts of a step, per device\n"
            "inference_microbatch_size: %" PRId64 "    # of them at once\n"
            "train_batch_size: %" PRId64 "             # the same, so that every step is on-policy\n"
            "num_generations: 8              # responses to each prompt, compared with each other\n"
            "token_budget: %" PRId64 "              # tokens of a forward and backward pass; less needs less memory\n"
            "max_prompt_tokens: %" PRId64 "          # 99.5 %% of the prompts are shorter\n"
            "max_new_tokens: %" PRId64 "             # watch 'cut' on the Overview: if many responses are cut, raise it\n\n",
            i->prompts, i->prompts, i->prompts, i->token_budget, i->n_prompt_tok, i->max_new_tok);

    buf_fmt(out,
            "algo: GRPO\n"
            "kl_coeff: 0              # no reference model: less memory, and most recipes do without\n"
            "learning_rate: %g    # watch KL and entropy: halve it when they run away, double it when nothing moves\n"
            "lr_schedule: constant\n"
            "warmup_steps: 5\n",
            i->learning_rate);
    buf_fmt(out, "max_hours: %g    # about %" PRId64 " steps of %s%.3g s; the step that is being made then is finished and saved\n",
            i->hours, i->n_step, seen->n > 0 ? "" : "at most ", i->step_s);
    buf_fmt(out, "num_episodes: %" PRId64 "    # passes over the data: more than fit into the hours\n", episodes(i));
    buf_fmt(out, "save_interval: %" PRId64 "\n", often);
}
