#include "protocol/settings/run_config.h"
#include "protocol/settings/host_list.h"
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/own_hosts.h"
#include "protocol/base/tcp.h"
#include "protocol/base/utf8.h"
#include "protocol/base/yaml_file.h"
#include "protocol/settings/atropos_options.h"
#include "protocol/settings/colossal_blocks.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/preset.h"

#define JUDGE_SHOWN_MIN 1024    // tokens: instructions, and some of the question and the answer
#define RUN_FILE_MAX ((size_t)1 << 20)

void run_config_init(struct run_config *c)
{
    *c = (struct run_config){ 0 };
    for (int i = 0; i < n_knobs; i++) {
        struct error err = { 0 };
        bool ok = run_config_set(c, knobs[i].name, knobs[i].def, FROM_DEFAULT, NULL, &err);
        BUG_IF(!ok, "default of '%s': %s", knobs[i].name, err.text);
    }
}

bool run_config_set(struct run_config *c, const char *name, const char *text, enum knob_source source, const char *base_dir,
                    struct error *err)
{
    const struct knob *k = knob_find(name, err);
    if (k && strcmp(k->name, "dtype") == 0)    // PyTorch's names
        text = strcmp(text, "bfloat16") == 0 ? "bf16" : strcmp(text, "float32") == 0 ? "fp32" : text;
    if (!k || !knob_types[k->type].read(k, (char *)c + k->offset, text, base_dir, err))
        return false;
    c->source[k - knobs] = (unsigned char)source;
    c->line[k - knobs] = source == FROM_FILE ? c->line_now : 0;
    return true;
}

/* ---- the run file ---- */

/* A YAML node as JSON, for eval_dataset. NULL when JSON cannot express it or memory runs out. */
static json_t *yaml_to_json(struct fy_node *node, int depth)
{
    void *it = NULL;
    json_t *all = NULL;
    bool ok = true;
    if (depth > 8)
        return NULL;
    switch (fy_node_get_type(node)) {
    case FYNT_SCALAR: {
        const char *s = fy_node_get_scalar0(node);
        size_t len = 0;
        int64_t n;
        double v;
        if (yaml_is_null(node))
            return json_null();
        if (!s)
            return NULL;
        if (!fy_node_get_scalar(node, &len) || strlen(s) != len)
            return NULL;    // a NUL, written as an escape
        if (fy_node_get_style(node) == FYNS_PLAIN && parse_i64(s, &n))
            return json_integer(n);
        if (fy_node_get_style(node) == FYNS_PLAIN && parse_f64(s, &v))
            return json_real(v);
        return json_string(s);
    }
    case FYNT_SEQUENCE:
        all = json_array();
        for (struct fy_node *e; ok && (e = fy_node_sequence_iterate(node, &it));)
            ok = json_array_append_new(all, yaml_to_json(e, depth + 1)) == 0;    // NULL makes this fail, so nothing is left out
        break;
    case FYNT_MAPPING:
        all = json_object();
        for (struct fy_node_pair *p; ok && (p = fy_node_mapping_iterate(node, &it));) {
            const char *key = fy_node_get_scalar0(fy_node_pair_key(p));
            ok = key && json_object_set_new(all, key, yaml_to_json(fy_node_pair_value(p), depth + 1)) == 0;
        }
        break;
    }
    if (ok)
        return all;
    json_decref(all);
    return NULL;
}

static bool mapping_read(struct run_config *c, struct fy_node *map, const char *path, const char *dir, const char *within,
                         bool seen[KNOB_MAX], struct error *err);

static bool has_block(struct fy_node *map)
{
    void *it = NULL;
    for (struct fy_node_pair *p; (p = fy_node_mapping_iterate(map, &it));) {
        struct fy_node *key = fy_node_pair_key(p), *value = fy_node_pair_value(p);
        const char *name = key ? fy_node_get_scalar0(key) : NULL;
        if (name && value && fy_node_is_mapping(value) && block_is(name))
            return true;
    }
    return false;
}

/* A key of such a mapping that means no setting. */
static bool block_pair_read(struct run_config *c, const struct block_key *k, struct fy_node *value, struct error *err)
{
    struct error why = { 0 };
    const char *text = value && fy_node_is_scalar(value) && !fy_node_is_alias(value) ? yaml_text(value, &why) : "a list or a mapping";
    return yaml_is_null(value) || (text ? block_key_take(c, k, text, err) : error_set(err, ERR_USAGE, "%s", why.text));
}

static bool pair_read(struct run_config *c, struct fy_node_pair *pair, const char *path, const char *dir, const char *within,
                      bool seen[KNOB_MAX], struct error *err)
{
    struct fy_node *key = fy_node_pair_key(pair), *value = fy_node_pair_value(pair);
    const char *name = key ? fy_node_get_scalar0(key) : NULL;
    int line = key ? yaml_line(key) : 0;
    struct error why = { 0 };
    if (!name)
        return error_set(err, ERR_USAGE, "%s: a key is not plain text", path);
    c->line_now = line;
    if ((!within || !*within) && value && fy_node_is_mapping(value) && block_is(name))
        return mapping_read(c, value, path, dir, name, seen, err);
    const struct block_key *meant = within ? block_key_find(within, name) : NULL;
    if (meant && !meant->sets)
        return block_pair_read(c, meant, value, &why) || error_set(err, ERR_USAGE, "%s:%d: %s", path, line, why.text);
    const struct knob *k = knob_find(meant ? meant->sets : name, &why);
    const struct atropos_option *option = k ? NULL : atropos_option_find(name);
    if (option) {
        why = (struct error){ 0 };
        const char *text = value && fy_node_is_scalar(value) && !fy_node_is_alias(value) ? yaml_text(value, &why) : NULL;
        return yaml_is_null(value) || (text && atropos_option_set(c, option, text, FROM_FILE, dir, &why))
               || error_set(err, ERR_USAGE, "%s:%d: %s", path, line, why.text[0] ? why.text : "a single value is needed");
    }
    if (!k)
        return error_set(err, ERR_USAGE, "%s:%d: %s", path, line, why.text);
    bool again = seen[k - knobs] && within && !yaml_is_null(value);    // blocks say some things twice
    if (seen[k - knobs] && !again)
        return error_set(err, ERR_USAGE, "%s:%d: '%s' is there twice", path, line, name);
    seen[k - knobs] = true;
    struct buf before = BUF_INIT, after = BUF_INIT;
    bool ok = true;
    if (again)
        knob_text(k, c, &before);
    if (yaml_is_null(value)) {
        ok = true;    // not given
    } else if (fy_node_is_scalar(value)) {
        const char *text = fy_node_is_alias(value) ? "" : yaml_text(value, &why);
        ok = fy_node_is_alias(value) ? error_set(&why, ERR_USAGE, "YAML aliases are not used in run files")
                                     : text && run_config_set(c, k->name, text, FROM_FILE, dir, &why);
    } else if (knob_types[k->type].yaml_nested) {
        json_t *j = yaml_to_json(value, 0);
        char *text = j ? json_text_dump(j, JSON_COMPACT) : NULL;
        ok = text ? run_config_set(c, k->name, text, FROM_FILE, dir, &why) : error_set(&why, ERR_USAGE, "'%s' cannot be read", name);
        free(text);
        json_decref(j);
    } else {
        ok = error_set(&why, ERR_USAGE, "'%s' must be a single value", name);
    }
    if (ok && again && strcmp(knob_text(k, c, &after), buf_text(&before)) != 0)
        ok = error_set(&why, ERR_USAGE, "'%s' is there twice, as %.200s and %.200s ('%s')", name, buf_text(&before), buf_text(&after),
                       k->name);
    buf_release(&before);
    buf_release(&after);
    return ok || error_set(err, ERR_USAGE, "%s:%d: %s", path, line, why.text);
}

static bool mapping_read(struct run_config *c, struct fy_node *map, const char *path, const char *dir, const char *within,
                         bool seen[KNOB_MAX], struct error *err)
{
    void *it = NULL;
    if (!within && has_block(map))
        within = BLOCK_BESIDE;
    for (struct fy_node_pair *p; (p = fy_node_mapping_iterate(map, &it));)
        if (!pair_read(c, p, path, dir, within, seen, err))
            return false;
    return true;
}

bool run_config_read(struct run_config *c, const char *path, struct error *err)
{
    struct yaml_file y;
    bool ok = false, seen[KNOB_MAX] = { false };
    char dir[PATH_MAX], full[PATH_MAX];
    TRY(yaml_open(&y, path, RUN_FILE_MAX, "a run file", "'setting: value' lines", err));
    if (!realpath(path, full)) {
        error_errno(err, "cannot resolve '%s'", path);
        goto out;
    }
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(full, '/') - full), full);
    snprintf(c->file, sizeof c->file, "%s", path);
    ok = !y.root || mapping_read(c, y.root, path, dir, NULL, seen, err);
    c->line_now = 0;    // what follows from the file stands in no line of it
out:
    yaml_close(&y);
    return ok;
}

bool run_config_print(const struct run_config *c, struct buf *out, struct error *err)
{
    struct buf b = BUF_INIT;
    buf_str(out, "# every setting of this run, as resolved\n");
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        const char *text = knob_text(k, c, &b);
        buf_fmt(out, "%s: ", k->name);
        if (utf8_valid_len((const uint8_t *)text, b.len, NULL, NULL) < b.len) {
            buf_release(&b);
            return error_set(err, ERR_DATA, "'%s' is not UTF-8", k->name);
        }
        if (knob_types[k->type].yaml_bare)
            buf_str(out, text);
        else
            json_text_print(out, text, b.len, JSON_TEXT_UTF8);    // a JSON string is a YAML string too
        buf_char(out, '\n');
    }
    buf_release(&b);
    return !out->failed || error_set(err, ERR_NO_MEMORY, "no memory for the run file");
}

/* ---- rules ---- */

bool reward_has(const struct run_config *c, const char *kind)
{
    for (const char *part = c->reward_type; part; part = strstr(part, " + ") ? strstr(part, " + ") + 3 : NULL) {
        char *after;
        (void)strtod(part, &after);
        const char *at = after + strspn(after, " ");    // a weight may go before: 0.5 * code
        at += *at == '*' ? 1 + strspn(at + 1, " ") : 0;
        if (strncmp(at, kind, strlen(kind)) == 0)
            return true;
    }
    return false;
}

static bool from_default(const struct run_config *c, const char *name)
{
    struct error err;
    const struct knob *k = knob_find(name, &err);
    return c->source[k - knobs] <= FROM_PRESET;
}

int64_t run_config_micro_tok(const struct run_config *c)
{
    return c->token_budget > 0 ? c->token_budget : c->train_microbatch_size * (c->max_prompt_tokens + c->max_new_tokens);
}

int64_t run_config_micro_tok_max(const struct run_config *c)
{
    return MAX(run_config_micro_tok(c), c->max_prompt_tokens + c->max_new_tokens);
}

double run_config_temperature(const struct run_config *c, int64_t rollout_step)
{
    if (!(c->temperature_end > 0))
        return c->temperature;
    double t = rollout_step < c->temperature_steps ? (double)rollout_step / (double)c->temperature_steps : 1;
    return t < 1 ? c->temperature + (c->temperature_end - c->temperature) * t : c->temperature_end;
}

int64_t run_config_length(const struct run_config *c, int64_t rollout_step)
{
    if (c->max_new_tokens_start == 0 || rollout_step >= c->max_new_tokens_steps)
        return c->max_new_tokens;
    int64_t start = MIN(c->max_new_tokens_start, c->max_new_tokens);
    return start + (c->max_new_tokens - start) * rollout_step / c->max_new_tokens_steps;
}

struct batch_filter run_config_filter(const struct run_config *c)
{
    return (struct batch_filter){ c->filter_range[0], c->filter_range[1], c->filter_no_spread };
}

/* Bring *field down to `to`, with a warning; without notes it is refused. */
static bool clamp(int64_t *field, int64_t to, const char *name, const char *why, struct buf *notes, struct error *err)
{
    if (*field <= to)
        return true;
    if (!notes)
        return error_set(err, ERR_REFUSED, "'%s' would be %" PRId64 ", and %" PRId64 " is the most: %s; give '%s' a value too", name,
                         *field, to, why, name);
    buf_fmt(notes, "warning: '%s' is %" PRId64 " and is taken as %" PRId64 ": %s\n", name, *field, to, why);
    *field = to;
    return true;
}

/* The setting has no effect, so any value would do; but ColossalChat refuses a value that does not divide, and a command line that
 * it refuses is refused here too. */
static bool minibatch_check(const struct run_config *c, struct error *err)
{
    int64_t size = c->train_minibatch_size;
    if (from_default(c, "train_minibatch_size") || size >= c->train_batch_size || c->train_batch_size % size == 0)
        return true;
    return error_set(err, ERR_USAGE,
                     "'train_batch_size' (%" PRId64 ") must be a multiple of 'train_minibatch_size' (%" PRId64 "), which has no effect "
                     "here and can be left out",
                     c->train_batch_size, size);
}

static bool sizes_check(struct run_config *c, struct buf *notes, struct error *err)
{
    int64_t prompts = c->inference_batch_size * c->num_inferencer;
    if (!clamp(&c->inference_microbatch_size, c->inference_batch_size, "inference_microbatch_size", "it cannot exceed inference_batch_size",
               notes, err))
        return false;
    if (c->inference_batch_size % c->inference_microbatch_size != 0)
        return error_set(err, ERR_USAGE,
                         "'inference_batch_size' (%" PRId64 ") must be a multiple of 'inference_microbatch_size' (%" PRId64 ")",
                         c->inference_batch_size, c->inference_microbatch_size);
    /* ColossalChat's own example command lines ask for train batches larger than a rollout step. */
    if (prompts % c->num_trainers == 0
        && !clamp(&c->train_batch_size, prompts / c->num_trainers, "train_batch_size",
                  "a rollout step (inference_batch_size x num_inferencer prompts) has no more for each trainer", notes, err))
        return false;
    if (prompts % (c->train_batch_size * c->num_trainers) != 0)
        return error_set(err, ERR_USAGE,
                         "a rollout step of %" PRId64 " prompts (inference_batch_size %" PRId64 " x num_inferencer %" PRId64
                         ") is not a multiple of "
                         "the %" PRId64 " of an optimizer step (train_batch_size %" PRId64 " x num_trainers %" PRId64 ")",
                         prompts, c->inference_batch_size, c->num_inferencer, (c->train_batch_size * c->num_trainers), c->train_batch_size,
                         c->num_trainers);
    if (c->train_batch_size * c->num_trainers > TRAIN_BATCH_MAX)
        return error_set(err, ERR_USAGE,
                         "an optimizer step of %" PRId64 " prompts (train_batch_size %" PRId64 " x num_trainers %" PRId64
                         ") is more than the %d "
                         "that are possible",
                         (c->train_batch_size * c->num_trainers), c->train_batch_size, c->num_trainers, TRAIN_BATCH_MAX);
    /* without notes the run is already going: this was checked when it started */
    return (!notes || minibatch_check(c, err))
           && clamp(&c->train_microbatch_size, c->train_batch_size * c->num_trainers * c->num_generations, "train_microbatch_size",
                    "an optimizer step has no more samples (train_batch_size x num_trainers x num_generations)", notes, err);
}

/* A run's name is a folder's name, and is shown in one line of a screen or a log. */
static bool name_check(const char *name, struct error *err)
{
    bool plain = utf8_check(name, strlen(name), "'name'", err);
    for (const unsigned char *p = (const unsigned char *)name; *p && plain; p++)    // C0, DEL, and C1 in UTF-8
        if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0))
            plain = error_set(err, ERR_USAGE, "'name' holds the control character 0x%02x; a run's name is a folder's name",
                              (unsigned)(*p == 0xc2 ? p[1] : *p));
    if (plain && (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
        plain = error_set(err, ERR_USAGE, "'name' cannot be '%s'; it must be usable as a folder's name", name);
    err->code = plain ? err->code : ERR_USAGE;
    return plain;
}

/* Free-running samples are of several weights at once, and an external engine's log-probs are those of other kernels, so their correction
 * is on unless somebody has said otherwise. Only when a run starts: what follows from it is fixed then. */
static bool rho_default(struct run_config *c, struct buf *notes, struct error *err)
{
    if (!notes)
        return true;
    bool external = run_config_external(c);
    if ((c->free_running || external) && isnan(c->rho_clamp[1]) && isnan(c->rho_mask[1]) && from_default(c, "rho_clamp")
        && from_default(c, "rho_mask") && from_default(c, "old_logprobs")) {
        if (!run_config_set(c, "rho_clamp", "[0, 2]", FROM_PRESET, NULL, err))
            return false;
        buf_fmt(notes,
                "note: %s, so 'rho_clamp' is [0, 2] and 'old_logprobs' is current (truncated importance sampling); 'rho_clamp' none leaves "
                "it to the clip\n",
                external ? "an external engine rounds otherwise than the trainer" : "'free_running' trains on samples of other weights");
    }
    /* a ratio to the sampled log-probs has in it what rho would weigh once more */
    return isnan(c->rho_clamp[1]) || !from_default(c, "old_logprobs")
           || run_config_set(c, "old_logprobs", "current", FROM_PRESET, NULL, err);
}

/* A teacher is in the reference's place, so there is no penalty beside it. */
static bool teacher_default(struct run_config *c, struct error *err)
{
    return !c->teacher[0] || !from_default(c, "kl_coeff") || run_config_set(c, "kl_coeff", "0", FROM_PRESET, NULL, err);
}

static bool teacher_check(const struct run_config *c, struct error *err)
{
    const struct {
        const char *name;
        bool is;
        const char *why;
    } not [] = {
        { "kl_coeff", c->beta > 0, "a teacher takes the reference model's place; set 'kl_coeff' to 0" },
        { "tensor_parallel_size", c->tensor_parallel_size > 1, "a teacher is whole on the trainer's device; more trainers are possible" },
        { "pipeline_parallel_size", c->pipeline_parallel_size > 1,
          "a teacher is whole on the trainer's device; more trainers are possible" },
        { "listen", c->listen[0] != 0, "other nodes get the model's files only" },
    };
    for (size_t i = 0; c->teacher[0] && i < ARRAY_SIZE(not ); i++)
        if (not [i].is)
            return error_set(err, ERR_USAGE, "'teacher' and '%s' do not go together: %s", not [i].name, not [i].why);
    return true;
}

static bool rho_check(const struct run_config *c, struct error *err)
{
    if (!isnan(c->rho_clamp[1]) && strcmp(c->old_logprobs, "current") != 0)
        return error_set(
            err, ERR_USAGE,
            "'rho_clamp' needs 'old_logprobs' current: the ratio to sampled ones already has in it what rho would weigh once more; "
            "'rho_mask' goes with both");
    return true;
}

/* What the optimizers other than AdamW do not go with. */
static bool optimizer_check(struct run_config *c, struct buf *notes, struct error *err)
{
    if (strcmp(c->optimizer, "adamw") == 0)
        return true;
    if (c->offload_optimizer)
        return error_set(err, ERR_USAGE, "'offload_optimizer' and 'optimizer' %s do not go together: its state stays on the device",
                         c->optimizer);
    if (strcmp(c->optimizer, "adafactor") != 0 || c->num_trainers == 1 || run_config_zero(c) == 0)
        return true;
    if (run_config_zero(c) > 0)
        return error_set(err, ERR_USAGE,
                         "'optimizer' adafactor needs 'zero_stage' 0: its sums go over whole tensors, and the stages above cut them");
    if (notes)
        buf_str(notes, "note: 'zero_stage' is 0, since 'optimizer' adafactor needs whole tensors on each trainer\n");
    return run_config_set(c, "zero_stage", "0", FROM_PRESET, NULL, err);
}

/* Trainers on several hosts: what they need, and what does not go with them. */
static bool hosts_check(const struct run_config *c, struct error *err)
{
    if (run_config_n_host(c) == 1)
        return true;
    int64_t away = c->num_trainers - c->trainers_per_node;
    if (!c->listen[0])
        return error_set(err, ERR_USAGE,
                         "'trainers_per_node' %" PRId64 " leaves %" PRId64 " of %" PRId64
                         " trainers to nodes that join, and 'listen' is not set: it says at which HOST:PORT they do",
                         c->trainers_per_node, away, c->num_trainers);
    const struct {
        bool is;
        const char *what, *instead;
    } without[] = {
        { c->checkpoint_path[0], "checkpoint_path", "nodes begin with the model's weights: make the checkpoint the 'model'" },
        { strcmp(c->placement, "apart") == 0, "placement apart", "a node's devices train and sample by turns: 'placement' is shared" },
        { strcmp(c->collective, "ipc") == 0, "collective ipc", "that is within one machine: auto is possible" },
        { strcmp(c->collective, "local") == 0, "collective local", "that is within one machine: auto is possible" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(without); i++)
        if (without[i].is)
            return error_set(err, ERR_USAGE, "'trainers_per_node' (%" PRId64 " of %" PRId64 ") and '%s' do not go together: %s",
                             c->trainers_per_node, c->num_trainers, without[i].what, without[i].instead);
    return true;
}

/* Each kind of devices has its ways. */
static bool collective_check(const struct run_config *c, struct error *err)
{
    bool cpu = strncmp(c->devices, "cpu:", 4) == 0, gpu = strncmp(c->devices, "cuda:", 5) == 0;
    if (c->num_trainers == 1 || strcmp(run_config_collective(c), "ipc") == 0)
        return true;
    if (gpu && strcmp(c->collective, "tcp") == 0)
        return error_set(err, ERR_USAGE, "'collective' tcp is for CPUs; for the GPUs of one host there are auto, ipc, local and nccl");
    if (cpu && strcmp(c->collective, "nccl") == 0)
        return error_set(err, ERR_USAGE, "'collective' nccl is for GPUs; for CPUs there are auto, ipc, local and tcp");
    return true;
}

/* What an adapter does not go with. */
static bool adapter_check(const struct run_config *c, struct error *err)
{
    if (c->lora_rank == 0 && !c->lora_adapter[0])
        return true;
    if (c->ref_update_steps > 0 && c->beta > 0)
        return error_set(err, ERR_USAGE, "'ref_update_steps' and '%s' do not go together: an adapter's reference is its frozen base model",
                         c->lora_adapter[0] ? "lora_adapter" : "lora_rank");
    if (c->listen[0])
        return error_set(err, ERR_USAGE,
                         "'listen' and '%s' do not go together: other nodes get their weights from the trainer, and of a run with an "
                         "adapter these are the adapter alone",
                         c->lora_adapter[0] ? "lora_adapter" : "lora_rank");
    return true;
}

const char *run_config_harness(const struct run_config *c)
{
    static const char kind[] = "harness:";
    return strncmp(c->environment, kind, sizeof kind - 1) == 0 ? c->environment + sizeof kind - 1 : NULL;
}

int64_t run_config_sessions(const struct run_config *c)
{
    return c->environment_processes > 0 ? c->environment_processes : 64;
}

/* A run with an environment takes its rewards, unless another reward is asked for. */
static bool environment_check(struct run_config *c, struct error *err)
{
    static const char program[] = "program:";
    const char *command = run_config_harness(c);
    if (!command && strncmp(c->environment, program, sizeof program - 1) == 0)
        command = c->environment + sizeof program - 1;
    if (c->environment[0] && (!command || !command[strspn(command, " ")]))
        return error_set(err, ERR_USAGE,
                         "'environment' is '%s'; it is 'program:' and the command that answers turns, or 'harness:' and the command of a "
                         "program that asks the model",
                         c->environment);
    if (c->environment[0] && from_default(c, "reward_type"))
        snprintf(c->reward_type, sizeof c->reward_type, "environment");
    if (!c->environment[0] && reward_has(c, "environment"))
        return error_set(err, ERR_USAGE, "'reward_type' is '%s', but the run has no 'environment' that gives a reward", c->reward_type);
    return true;
}

/* Is it the address of an HTTP server, and shorter than size? */
static bool url_check(const char *url, size_t size)
{
    size_t scheme = strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
    return scheme > 0 && url[scheme] && url[scheme] != '/' && strlen(url) < size && !strpbrk(url, " ?#\t\r\n");
}

static bool urls_check(const struct run_config *c, struct error *err)
{
    char url[280], device[32];
    for (int64_t i = 0; i < run_config_n_engine(c); i++) {
        snprintf(device, sizeof device, "engine:%" PRId64, i);
        if (!run_config_engine(c, device, url, sizeof url) || !url_check(url, sizeof url))
            return error_set(err, ERR_USAGE, "'engine_url' is '%.200s'; it is http://HOST:PORT, or several with commas between them",
                             c->engine_url);
    }
    return true;
}

/* The modes of Atropos' trainer, with its defaults: a server on this host, and an adapter of rank 16 on the queries and values. */
static bool bridge_default(struct run_config *c, struct error *err)
{
    char at[64];
    bool lora = strncmp(c->weight_bridge_mode, "lora", 4) == 0, shared = strcmp(c->weight_bridge_mode, "shared_vllm") == 0;
    snprintf(at, sizeof at, "http://127.0.0.1:%" PRId64, c->atropos.vllm_port ? c->atropos.vllm_port : 9001);
    if (!run_config_posted(c))
        return (!lora && !shared)
               || error_set(err, ERR_USAGE,
                            "'weight_bridge_mode' %s is for a run with 'environments' or --atropos-url; others sample by themselves",
                            c->weight_bridge_mode);
    if (shared && c->engine_url[0])
        return error_set(err, ERR_USAGE,
                         "'weight_bridge_mode' shared_vllm and 'engine_url' do not go together: environments ask the run itself");
    if (c->weight_bridge_file[0] && !shared)
        return error_set(err, ERR_USAGE, "'weight_bridge_file' belongs to 'weight_bridge_mode' shared_vllm, not %s", c->weight_bridge_mode);
    if (c->weight_bridge_file[0] && (c->lora_rank > 0 || c->lora_adapter[0]))
        return error_set(err, ERR_USAGE,
                         "'weight_bridge_file' lends whole weights, and this run trains an adapter; "
                         "'weight_bridge_mode' lora_only gives it to servers");
    if (shared && c->weight_bridge_file[0])
        return true;
    if (shared)
        return c->serve[0] || run_config_set(c, "serve", at + sizeof "http://" - 1, FROM_PRESET, NULL, err);
    if (lora && c->lora_rank == 0 && !c->lora_adapter[0]
        && (!run_config_set(c, "lora_rank", "16", FROM_PRESET, NULL, err)
            || (from_default(c, "lora_target_modules")
                && !run_config_set(c, "lora_target_modules", "q_proj,v_proj", FROM_PRESET, NULL, err))))
        return false;
    if (!c->engine_url[0] && (lora || c->atropos.vllm_port) && !run_config_set(c, "engine_url", at, FROM_PRESET, NULL, err))
        return false;
    return urls_check(c, err);
}

/* Example lines of ColossalChat name the engine it would start itself. Nothing is started here, so without a server's address rollcall's
 * own engine samples. */
static bool backend_default(struct run_config *c, struct buf *notes, struct error *err)
{
    bool transformers = strcmp(c->backend, "transformers") == 0;
    if (!run_config_external(c) || (c->engine_url[0] && !transformers))
        return true;
    if (notes)
        buf_fmt(notes, "note: 'backend' %s: rollcall's own engine samples%s\n", c->backend,
                transformers ? "" : "; to have a server of it sample, start it and give 'engine_url' http://HOST:PORT");
    return run_config_set(c, "backend", "rollcall", FROM_PRESET, NULL, err);
}

/* External engines are producers of their own: one per address, on devices of their own. */
static bool external_default(struct run_config *c, struct error *err)
{
    char n[32];
    int64_t n_engine = run_config_n_engine(c);
    if (!run_config_external(c))
        return !c->engine_url[0] || run_config_posted(c)
               || error_set(err, ERR_USAGE, "'engine_url' is for 'backend' vllm or sglang; with rollcall the run samples by itself");
    if (!urls_check(c, err))
        return false;
    static const struct {
        const char *name;
        size_t offset;
    } none[] = { { "environment", offsetof(struct run_config, environment) },
                 { "environments", offsetof(struct run_config, environments) },
                 { "listen", offsetof(struct run_config, listen) } };
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        if (((const char *)c + none[i].offset)[0])
            return error_set(err, ERR_USAGE, "'%s' and 'backend' %s do not go together; leave one of them out", none[i].name, c->backend);
    snprintf(n, sizeof n, "%" PRId64, n_engine);
    if (!from_default(c, "num_inferencer") && c->num_inferencer != n_engine)
        return error_set(err, ERR_USAGE, "'num_inferencer' is %" PRId64 ", but 'engine_url' has %" PRId64 " addresses; each is a producer",
                         c->num_inferencer, n_engine);
    if (c->producer_tensor_parallel_size > 1)
        return error_set(err, ERR_USAGE, "'producer_tensor_parallel_size' is %" PRId64 ", but external engines have devices of their own",
                         c->producer_tensor_parallel_size);
    if (strcmp(c->weights, "auto") != 0 && strcmp(c->weights, "files") != 0)
        return error_set(err, ERR_USAGE, "'weights' is '%s', but external engines read them from files", c->weights);
    return run_config_set(c, "placement", "apart", FROM_PRESET, NULL, err)
           && run_config_set(c, "num_inferencer", n, FROM_PRESET, NULL, err);
}

/* A run that trains on what environments post samples nothing itself: batches form in order of arrival, of samples of any weights, and
 * the run file's number of steps is the only end. */
static bool posted_default(struct run_config *c, struct error *err)
{
    struct environments unused;
    if (!run_config_posted(c))
        return true;
    if (!run_config_environments(c, &unused, err))
        return false;
    if (c->environment[0])
        return error_set(err, ERR_USAGE,
                         "'environment' and 'environments' do not go together: the one answers what this run samples, and "
                         "with the other it samples nothing");
    if (c->listen[0])
        return error_set(err, ERR_USAGE,
                         "'listen' and 'environments' do not go together: other nodes sample, and this run samples nothing");
    if (c->max_steps == 0)
        return error_set(err, ERR_USAGE, "'environments' needs 'max_steps' (Atropos' --training-steps), since what is posted has no end");
    return run_config_set(c, "free_running", "true", FROM_PRESET, NULL, err)
           && run_config_set(c, "placement", "apart", FROM_PRESET, NULL, err)
           && run_config_set(c, "num_inferencer", "1", FROM_PRESET, NULL, err);
}

/* Who can reach the policy must be allowed to use it. */
static bool serve_check(const struct run_config *c, struct error *err)
{
    if (!own_hosts_check(c->allowed_hosts, "'allowed_hosts'", err))
        return false;
    if (!c->serve[0])
        return true;
    if (!strchr(c->serve, ':'))
        return error_set(err, ERR_USAGE, "'serve' is '%.100s'; it must be HOST:PORT, e.g. 127.0.0.1:9001", c->serve);
    if (!c->serve_tls_cert[0] != !c->serve_tls_key[0])
        return error_set(err, ERR_USAGE, "'serve_tls_cert' and 'serve_tls_key' are needed both, or neither");
    return tcp_is_loopback(c->serve) || c->serve_token_file[0]
           || error_set(err, ERR_USAGE, "'serve': %.100s is reached from other hosts: give a 'serve_token_file'", c->serve);
}

/* What does not go with a trainer on several devices, as many as the setting `name` says. */
static bool devices_of_trainer_check(const struct run_config *c, const char *name, int64_t n, struct error *err)
{
    if (c->lora_rank > 0 || c->lora_adapter[0])
        return error_set(err, ERR_USAGE,
                         "'%s' is %" PRId64 ", but an adapter is trained on one device: only 1 works with 'lora_rank' and 'lora_adapter'",
                         name, n);
    bool staged = c->pipeline_parallel_size > 1, whole = c->tensor_parallel_size == 1;    // a stage has whole tensors
    return strcmp(c->optimizer, "adamw") == 0 || (staged && whole && strcmp(c->optimizer, "adamw_8bit") == 0)
           || error_set(err, ERR_USAGE,
                        "'%s' is %" PRId64 ", but the 'optimizer' %s adds up over more than one device has: %s possible, or '%s' 1", name,
                        n, c->optimizer, staged && whole ? "adamw and adamw_8bit are" : "adamw is", name);
}

/* And with a trainer in stages. */
static bool stages_of_trainer_check(const struct run_config *c, struct error *err)
{
    int64_t n = c->pipeline_parallel_size, tp = c->tensor_parallel_size, most = 8;
    if (n * tp > most)
        return error_set(err, ERR_USAGE,
                         "'pipeline_parallel_size' %" PRId64 " and 'tensor_parallel_size' %" PRId64 " ask for %" PRId64
                         " devices of a trainer; at most %" PRId64 " are possible: 'pipeline_parallel_size' %" PRId64
                         " with 'tensor_parallel_size' %" PRId64,
                         n, tp, n * tp, most, MAX(most / tp, (int64_t)1), MIN(tp, most));
    return devices_of_trainer_check(c, "pipeline_parallel_size", n, err);
}

static bool parallel_check(const struct run_config *c, struct error *err)
{
    const struct {
        const char *name;
        int64_t n;
    } size[] = {
        { "tensor_parallel_size", c->tensor_parallel_size },
        { "producer_tensor_parallel_size", c->producer_tensor_parallel_size },
    };
    int64_t n = c->producer_tensor_parallel_size, parts = c->sum_parts;
    if (c->pipeline_parallel_size > 1 && !stages_of_trainer_check(c, err))
        return false;
    if (c->sequence_parallel_size != 1)
        return error_set(err, ERR_USAGE,
                         "'sequence_parallel_size' is %" PRId64
                         ", but a sequence is computed whole: only 1 works; 'recompute_full' and a smaller 'token_budget' leave room for "
                         "long ones",
                         c->sequence_parallel_size);
    if (c->enable_sequence_parallelism)
        return error_set(err, ERR_USAGE,
                         "'enable_sequence_parallelism' is true, but a trainer's devices have whole norms and residuals of every token: "
                         "only false works");
    if (parts & (parts - 1))
        return error_set(err, ERR_USAGE, "'sum_parts' is %" PRId64 "; 0 (chosen), 1, 2, 4 and 8 are possible", parts);
    for (size_t i = 0; i < ARRAY_SIZE(size); i++) {
        if (size[i].n & (size[i].n - 1))
            return error_set(err, ERR_USAGE, "'%s' is %" PRId64 "; 1, 2, 4 and 8 are possible", size[i].name, size[i].n);
        if (parts > 0 && parts < size[i].n)
            return error_set(err, ERR_USAGE,
                             "'sum_parts' is %" PRId64 ", but '%s' %" PRId64 " shares each sum among that many devices, "
                             "which needs as many parts; another 'sum_parts' gives other bits",
                             parts, size[i].name, size[i].n);
    }
    if (c->tensor_parallel_size > 1 && !devices_of_trainer_check(c, "tensor_parallel_size", c->tensor_parallel_size, err))
        return false;
    if (n > 1 && (c->lora_rank > 0 || c->lora_adapter[0]))
        return error_set(err, ERR_USAGE,
                         "'producer_tensor_parallel_size' is %" PRId64
                         ", but a model with an adapter is sampled from on one device: only 1 "
                         "works with 'lora_rank' and 'lora_adapter'",
                         n);
    return true;
}

/* The machines that nodes are started on, and where those find the head. */
static bool starts_check(struct run_config *c, struct error *err)
{
    struct host host[HOSTS_MAX];
    int n;
    if (!host_list_read(c->hosts, host, &n, err))
        return false;
    if (n > 0 && !c->listen[0])
        snprintf(c->listen, sizeof c->listen, HOSTS_LISTEN);
    if (c->listen_lent[0] && run_config_harness(c))
        return error_set(
            err, ERR_USAGE,
            "'listen_lent' and a harness do not go together: what a session's program asks is not checked on machines of others");
    if (c->listen_lent[0] && (!c->listen[0] || strcmp(c->listen, c->listen_lent) == 0))
        return error_set(err, ERR_USAGE, "'listen_lent' needs 'listen', at another port: it says where machines join that may only sample");
    return true;
}

/* Sizes of which the run would use another than is set. */
static bool sizes_kept(const struct run_config *c, struct error *err)
{
    int64_t longest = c->max_prompt_tokens + c->max_new_tokens, room = c->inference_microbatch_size * c->num_generations,
            shown = c->llm_judge_max_context_length - c->llm_judge_max_tokens;
    if (c->token_budget > 0 && c->token_budget < longest)
        return error_set(err, ERR_USAGE,
                         "'token_budget' is %" PRId64 "; it must be 0, or at least the %" PRId64
                         " tokens of the longest sequence (max_prompt_tokens + max_new_tokens)",
                         c->token_budget, longest);
    if (run_config_posted(c) && c->serve_samples > room)
        return error_set(err, ERR_USAGE,
                         "'serve_samples' is %" PRId64 "; with 'environments' it must be 0 to %" PRId64
                         " (inference_microbatch_size x num_generations)",
                         c->serve_samples, room);
    return shown >= JUDGE_SHOWN_MIN || !strstr(c->reward_type, "verify")
           || error_set(err, ERR_USAGE,
                        "'llm_judge_max_context_length' is %" PRId64 "; it must be at least %" PRId64
                        " (llm_judge_max_tokens and %d for what the judge is shown)",
                        c->llm_judge_max_context_length, c->llm_judge_max_tokens + JUDGE_SHOWN_MIN, JUDGE_SHOWN_MIN);
}

static bool meaning_check(struct run_config *c, struct buf *notes, struct error *err)
{
    if (!starts_check(c, err))
        return false;
    if (!name_check(c->name, err) || !optimizer_check(c, notes, err) || !hosts_check(c, err) || !collective_check(c, err)
        || !adapter_check(c, err) || !teacher_check(c, err) || !environment_check(c, err) || !serve_check(c, err))
        return false;
    if (!parallel_check(c, err) || !sizes_kept(c, err))
        return false;
    if (c->free_running && strcmp(c->placement, "apart") != 0)
        return error_set(err, ERR_USAGE, "'free_running' needs 'placement' apart: producers that never wait need their own devices");
    if (c->listen[0] && c->tokenizer_path[0])
        return error_set(err, ERR_USAGE,
                         "'listen' and 'tokenizer_path' do not go together: other nodes get the model's files; put the tokenizer into the "
                         "model's directory");
    if (c->free_running && c->apply_evolving_rubric_reward)
        return error_set(err, ERR_USAGE,
                         "'apply_evolving_rubric_reward' and 'free_running' do not go together: which rubrics an item is judged by follows "
                         "from rollout steps in order; leave one of them out");
    if (c->free_running && c->over_sample_rate > 0)
        return error_set(err, ERR_USAGE,
                         "'over_sample_rate' and 'free_running' do not go together: free-running takes the groups that are complete first "
                         "anyway, and trains on the others later");
    if (c->free_running && c->no_resampling_pass_rate > 0)
        return error_set(
            err, ERR_USAGE,
            "'no_resampling_pass_rate' works with rollout steps in order, which 'free_running' gives up; leave one of them out");
    if (c->free_running && c->curriculum_levels > 1)
        return error_set(err, ERR_USAGE,
                         "'curriculum_levels' works with rollout steps in order, which 'free_running' gives up; leave one of them out");
    if (c->curriculum_levels > 1 && run_config_posted(c))
        return error_set(err, ERR_USAGE,
                         "'curriculum_levels' and 'environments' do not go together: groups that are posted have no level of this run; "
                         "leave one of them out");
    if (c->curriculum_start >= c->curriculum_levels && c->curriculum_start > 0 && c->curriculum_levels > 1)
        return error_set(err, ERR_USAGE,
                         "'curriculum_start' (%" PRId64 ") is no level: with 'curriculum_levels' %" PRId64 " the last one is %" PRId64,
                         c->curriculum_start, c->curriculum_levels, c->curriculum_levels - 1);
    if (c->curriculum_levels > 1 && c->curriculum_easier_rate >= c->curriculum_pass_rate)
        return error_set(err, ERR_USAGE,
                         "'curriculum_easier_rate' (%g) must be below 'curriculum_pass_rate' (%g), or the level would go up and down with "
                         "the same share",
                         c->curriculum_easier_rate, c->curriculum_pass_rate);
    if (c->free_running && c->n_behind > 0)
        return error_set(err, ERR_USAGE, "'n_behind' (%" PRId64 ") has no meaning with 'free_running'; 'max_staleness' is its bound",
                         c->n_behind);
    if (notes && strcmp(c->algo, "DAPO") == 0 && c->beta > 0)
        buf_fmt(notes, "note: DAPO uses no KL penalty as published; 'kl_coeff' %g is used because it was asked for\n", c->beta);
    if (c->soft_over_length_punishment && c->cache_length >= c->max_new_tokens)
        return error_set(err, ERR_USAGE,
                         "'cache_length' (%" PRId64 ") must be below 'max_new_tokens' (%" PRId64 "); 0 takes a quarter of it",
                         c->cache_length, c->max_new_tokens);
    if (notes && c->max_new_tokens_start > c->max_new_tokens)
        return error_set(err, ERR_USAGE, "'max_new_tokens_start' (%" PRId64 ") is above 'max_new_tokens' (%" PRId64 "), where it is to end",
                         c->max_new_tokens_start, c->max_new_tokens);
    if (c->min_new_tokens > run_config_length(c, 0))
        return error_set(err, ERR_USAGE, "'min_new_tokens' (%" PRId64 ") is above the longest completion of %" PRId64 " tokens",
                         c->min_new_tokens, run_config_length(c, 0));
    if (c->soft_over_length_punishment && c->max_new_tokens_start > 0 && c->cache_length >= c->max_new_tokens_start)
        return error_set(err, ERR_USAGE,
                         "'cache_length' (%" PRId64 ") must be below 'max_new_tokens_start' (%" PRId64
                         "); 0 takes a quarter of each length",
                         c->cache_length, c->max_new_tokens_start);
    if (!rho_check(c, err))
        return false;
    if (c->stuck_s < c->slow_s)
        return error_set(err, ERR_USAGE, "'stuck_s' (%g) must not be below 'slow_s' (%g)", c->stuck_s, c->slow_s);
    return true;
}

/* The line of the first setting that the text names, in quotes or not, and that stands in the run file; 0: there is none. Words that
 * are a setting's name by chance ("the model's files") have no underscore and no quotes. */
static int32_t line_named(const struct run_config *c, const char *text, bool quoted)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    for (const char *at = text + strcspn(text, letters); *at; at += strcspn(at, letters)) {
        size_t len = strspn(at, letters);
        bool counts = quoted ? at > text && at[-1] == '\'' : memchr(at, '_', len) != NULL;
        for (int i = 0; counts && i < n_knobs; i++)
            if (c->line[i] > 0 && strncmp(knobs[i].name, at, len) == 0 && !knobs[i].name[len])
                return c->line[i];
        at += len;
    }
    return 0;
}

void run_config_place(const struct run_config *c, struct error *err)
{
    int32_t line = line_named(c, err->text, true);
    line = line > 0 ? line : line_named(c, err->text, false);
    if (c->file[0] && line > 0)
        error_wrap(err, "%s:%d", c->file, line);
}

static bool rules_check(struct run_config *c, struct buf *notes, struct error *err)
{
    struct eval_set sets[EVAL_SET_MAX];
    return preset_apply(c, err) && atropos_options_finish(c, notes, err) && backend_default(c, notes, err) && posted_default(c, err)
           && bridge_default(c, err) && external_default(c, err) && rho_default(c, notes, err) && teacher_default(c, err)
           && sizes_check(c, notes, err) && meaning_check(c, notes, err) && run_config_eval_sets(c, sets, err) >= 0;
}

bool run_config_finish(struct run_config *c, struct buf *notes, struct error *err)
{
    blocks_finish(c, notes);
    if (rules_check(c, notes, err))
        return true;
    if (notes)    // without, a command is checked, whose value stands in no file
        run_config_place(c, err);
    return false;
}

bool run_plan_make(struct run_plan *p, const struct run_config *c, int64_t n_row, struct error *err)
{
    *p = (struct run_plan){ .producers = c->num_inferencer, .dp = c->num_trainers };
    p->prompts_per_rollout_step = c->inference_batch_size * p->producers;
    p->prompts_opened = run_config_opened(c);
    p->prompts_per_train_batch = c->train_batch_size * p->dp;
    p->k = p->prompts_per_rollout_step / p->prompts_per_train_batch;
    if (n_row < 1)
        return error_set(err, ERR_DATA, "'%s' holds no usable line", c->dataset);
    if (n_row < p->prompts_opened && c->max_steps == 0)
        return error_set(err, ERR_USAGE,
                         "'%s' has %" PRId64 " usable lines, fewer than the %" PRId64 " prompts of a rollout step; lower "
                         "'inference_batch_size' or set 'max_steps'",
                         c->dataset, n_row, p->prompts_opened);
    p->rollout_steps = (c->num_episodes * n_row + p->prompts_opened - 1) / p->prompts_opened;
    /* not computed from k, which is 0 while old and new sizes are briefly in force together */
    p->total_steps = c->max_steps ? c->max_steps : p->rollout_steps * p->prompts_per_rollout_step / p->prompts_per_train_batch;
    p->max_age_steps = c->free_running ? c->max_staleness : (c->n_behind + 1) * p->k - 1;
    p->on_policy = c->n_behind == 0 && p->k == 1 && !c->free_running && c->update_epochs * c->update_minibatches == 1;
    return true;
}

int64_t run_plan_item_after(const struct run_plan *p, int64_t step)
{
    int64_t n = step * p->prompts_per_train_batch, whole = p->prompts_per_rollout_step;
    return (n + whole - 1) / whole * p->prompts_opened;
}

const char *run_config_tokenizer(const struct run_config *c)
{
    return c->tokenizer_path[0] ? c->tokenizer_path : c->model;
}

int64_t run_config_opened(const struct run_config *c)
{
    int64_t n = c->inference_batch_size * c->num_inferencer;
    return n + (int64_t)ceil((double)n * c->over_sample_rate - 1e-9);    // a tenth of 10 is 1, though 0.1 is a little more
}

static bool eval_number_check(const char *field, double v, double low, double high, const char *set, struct error *err)
{
    return (v >= low && v <= high)
           || error_set(err, ERR_USAGE, "'eval_dataset': the '%s' of the set '%s' is %g; it must be %s%.3g to %.16g", field, set, v,
                        strcmp(field, "temperature") == 0 ? "0, or " : "", low, high);
}

/* Would the answers to two sets go to one file? */
static bool eval_files_same(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] && b[i] && path_plain(a[i], i == 0) == path_plain(b[i], i == 0))
        i++;
    return !a[i] && !b[i];
}

int run_config_eval_sets(const struct run_config *c, struct eval_set out[EVAL_SET_MAX], struct error *err)
{
    int n = 0;
    if (!c->eval_dataset[0])
        return 0;
    json_t *root = json_str_read(c->eval_dataset, 0, NULL), *v;
    const char *name;
    bool ok = json_is_object(root) || error_set(err, ERR_USAGE, "'eval_dataset' must be a JSON object");
    json_object_foreach(root, name, v)
    {
        double t = c->eval_temperature, top_p = c->eval_top_p > 0 ? c->eval_top_p : c->top_p;
        json_int_t samples = 1, limit = 0, length = c->eval_max_new_tokens > 0 ? c->eval_max_new_tokens : c->max_new_tokens;
        const char *path = NULL, *prompt = c->prompt_column, *answer = c->answer_column, *template = c->prompt_template;
        json_error_t je;
        if (ok && n == EVAL_SET_MAX)
            ok = error_set(err, ERR_USAGE, "'eval_dataset' names more than %d sets", EVAL_SET_MAX);
        if (!ok)
            break;
        if (json_unpack_ex(v, &je, JSON_STRICT, "{s:s, s?F, s?F, s?I, s?I, s?I, s?s, s?s, s?s}", "path", &path, "temperature", &t, "top_p",
                           &top_p, "max_new_tokens", &length, "n", &samples, "limit", &limit, "prompt_column", &prompt, "answer_column",
                           &answer, "prompt_template", &template)
            != 0)
            ok = error_set(err, ERR_USAGE, "'eval_dataset': the set '%s': %s", name, je.text);
        else if (length < 1 || length > c->max_new_tokens)
            ok = error_set(err, ERR_USAGE,
                           "'eval_dataset': answers of %" PRId64
                           " tokens to the set '%s' need a 'max_new_tokens' of as many; it is %" PRId64,
                           (int64_t)length, name, c->max_new_tokens);
        else if (!(eval_number_check("top_p", top_p, FLT_MIN, 1, name, err)
                   && (t == 0 || eval_number_check("temperature", t, FLT_MIN, 100, name, err))
                   && eval_number_check("n", (double)samples, 1, 1024, name, err)
                   && eval_number_check("limit", (double)limit, 0, KNOB_UNBOUNDED, name, err)))
            ok = false;
        else if (strlen(name) >= sizeof out->name || strlen(path) >= sizeof out->path || strlen(prompt) >= sizeof out->prompt_column
                 || strlen(answer) >= sizeof out->answer_column || strlen(template) >= sizeof out->prompt_template)
            ok = error_set(err, ERR_USAGE, "'eval_dataset': the name, path or columns of '%.40s' are too long", name);
        if (ok && !name[0])
            ok = error_set(err, ERR_USAGE, "'eval_dataset': the set of '%s' has an empty name", path);
        for (int i = 0; ok && i < n; i++)
            if (eval_files_same(out[i].name, name))
                ok = error_set(err, ERR_USAGE, "'eval_dataset': the answers to the sets '%s' and '%s' would go to one file; rename one",
                               out[i].name, name);
        if (!ok)
            break;
        struct eval_set *s = &out[n++];
        *s = (struct eval_set){ .temperature = t, .top_p = top_p, .max_new_tokens = length, .n = samples, .limit = limit };
        strcpy(s->name, name);
        strcpy(s->path, path);
        strcpy(s->prompt_column, prompt);
        strcpy(s->answer_column, answer);
        strcpy(s->prompt_template, template);
    }
    json_decref(root);
    return ok ? n : -1;
}

int64_t run_config_n_host(const struct run_config *c)
{
    return c->trainers_per_node > 0 ? (c->num_trainers + c->trainers_per_node - 1) / c->trainers_per_node : 1;
}

int64_t run_config_trainers_at(const struct run_config *c, int64_t first)
{
    return c->trainers_per_node > 0 ? MIN(c->trainers_per_node, c->num_trainers - first) : c->num_trainers;
}

int64_t run_config_trainers_here(const struct run_config *c)
{
    return c->node_only && c->first_trainer <= 0 ? 0 : run_config_trainers_at(c, c->first_trainer);
}

int64_t run_config_n_worker(const struct run_config *c)
{
    int64_t n_trainer = run_config_trainers_here(c);
    if (run_config_posted(c))
        return n_trainer;
    return strcmp(c->placement, "apart") == 0 ? n_trainer + c->num_inferencer : MAX(n_trainer, c->num_inferencer);
}

int64_t run_config_trainer_devices(const struct run_config *c)
{
    return c->tensor_parallel_size * c->pipeline_parallel_size;
}

int64_t run_config_devices_at(const struct run_config *c, int64_t first)
{
    return run_config_trainers_at(c, first) * run_config_trainer_devices(c);
}

/* Further devices of all producers. */
static int64_t producers_further(const struct run_config *c)
{
    return run_config_posted(c) ? 0 : c->num_inferencer * (c->producer_tensor_parallel_size - 1);
}

/* How many of trainer i's further devices, the first ones, are its own producer's, too; i is counted on this host. */
static int64_t trainer_shared(const struct run_config *c, int64_t i)
{
    bool samples = !run_config_posted(c) && strcmp(c->placement, "apart") != 0 && i < c->num_inferencer;
    return samples ? MIN(run_config_trainer_devices(c), c->producer_tensor_parallel_size) - 1 : 0;
}

/* Where the devices that are only this trainer's begin among the further ones; of the one after the last: how many further ones there
 * are. */
static int64_t trainer_further(const struct run_config *c, int64_t i)
{
    int64_t at = producers_further(c);
    for (int64_t k = 0; k < i; k++)
        at += run_config_trainer_devices(c) - 1 - trainer_shared(c, k);
    return at;
}

int64_t run_config_n_device(const struct run_config *c)
{
    return run_config_n_worker(c) + trainer_further(c, run_config_trainers_here(c));
}

/* The rank of the trainer that computes on further device at, too; -1: none. */
static int64_t trainer_with(const struct run_config *c, int64_t at)
{
    for (int64_t i = 0; i < run_config_trainers_here(c) && at >= 0; i++) {
        int64_t of_producer = at - i * (c->producer_tensor_parallel_size - 1);
        if ((at >= trainer_further(c, i) && at < trainer_further(c, i + 1)) || (of_producer >= 0 && of_producer < trainer_shared(c, i)))
            return c->first_trainer + i;
    }
    return -1;
}

bool run_config_part(const struct run_config *c, const char *device, struct run_part *part, struct error *err)
{
    size_t len = strlen(device);
    int64_t k = 0, n_trainer = run_config_trainers_here(c), first = strcmp(c->placement, "apart") == 0 ? n_trainer : 0,
            n_worker = run_config_n_worker(c);
    const char *at = c->devices;
    while (strncmp(at, device, len) != 0 || (at[len] && at[len] != ',')) {
        if (!(at = strchr(at, ',')))
            return error_set(err, ERR_USAGE, "'%s' is not among the run's devices '%s'", device, c->devices);
        at++;
        k++;
    }
    part->rank = k < n_trainer ? c->first_trainer + k : -1;
    part->producer = k >= first && k < first + c->num_inferencer ? k - first : -1;
    int64_t further = k - n_worker;
    bool of_producer = further >= 0 && further < producers_further(c);
    part->helps = of_producer ? further / (c->producer_tensor_parallel_size - 1) : -1;
    part->helps_trainer = trainer_with(c, further);
    return true;
}

/* Word i of the list of devices. */
static void device_name(const struct run_config *c, int64_t i, char *out, size_t size)
{
    const char *at = c->devices;
    for (int64_t k = 0; k < i && at; k++)
        at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    BUG_IF(!at, "device %" PRId64 " is not in '%s'", i, c->devices);
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

void run_config_helper(const struct run_config *c, int64_t producer, int64_t k, char *out, size_t size)
{
    device_name(c, run_config_n_worker(c) + producer * (c->producer_tensor_parallel_size - 1) + k, out, size);
}

void run_config_trainer_helper(const struct run_config *c, int64_t rank, int64_t k, char *out, size_t size)
{
    int64_t i = rank - c->first_trainer, shared = trainer_shared(c, i),
            at = k < shared ? i * (c->producer_tensor_parallel_size - 1) + k : trainer_further(c, i) + k - shared;
    device_name(c, run_config_n_worker(c) + at, out, size);
}

int run_config_sum_parts(const struct run_config *c)
{
    int64_t n = MAX(c->tensor_parallel_size, c->producer_tensor_parallel_size), parts = c->sum_parts ? c->sum_parts
                                                                                        : n > 1      ? MAX(n, (int64_t)4)
                                                                                                     : 1;
    return parts > 1 ? (int)parts : 0;
}

const char *run_part_text(const struct run_part *part, char *out, size_t size)
{
    char trainer[32] = "", producer[32] = "";
    if (part->rank >= 0)
        snprintf(trainer, sizeof trainer, "trainer %" PRId64, part->rank);
    if (part->producer >= 0)
        snprintf(producer, sizeof producer, "producer %" PRId64, part->producer);
    if (part->helps >= 0)
        snprintf(producer, sizeof producer, "with producer %" PRId64, part->helps);
    if (part->helps_trainer >= 0)
        snprintf(trainer, sizeof trainer, "with trainer %" PRId64, part->helps_trainer);
    snprintf(out, size, "%s%s%s", trainer, trainer[0] && producer[0] ? ", " : "", producer);
    return out;
}

const char *run_config_trainer(const struct run_config *c, int64_t rank, char *out, size_t size)
{
    bool here = !c || (rank >= c->first_trainer && rank < c->first_trainer + run_config_trainers_here(c));
    snprintf(out, size, "trainer %" PRId64 "%s", rank, here ? "" : " (on another node)");
    for (const char *at = c ? c->devices : ""; *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strcspn(at, ",")) {
        struct error err;
        struct run_part part;
        char device[64];
        snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(at, ","), sizeof device - 1), at);
        if (run_config_part(c, device, &part, &err) && part.rank == rank)
            snprintf(out, size, "trainer %" PRId64 " (%s)", rank, device);
    }
    return out;
}

const char *run_config_collective(const struct run_config *c)
{
    if (strcmp(c->collective, "auto") != 0)
        return c->collective;
    return run_config_n_host(c) == 1 ? "ipc" : strncmp(c->devices, "cuda:", 5) == 0 ? "nccl" : "tcp";
}

bool run_config_apart(const struct run_config *c)
{
    return c->num_trainers > 1 && strcmp(run_config_collective(c), "ipc") != 0;
}

bool run_config_saves_together(const struct run_config *c)
{
    return run_config_apart(c) && run_config_zero(c) != 0;
}

int run_config_zero(const struct run_config *c)
{
    return strcmp(c->zero_stage, "auto") == 0 ? -1 : c->zero_stage[0] - '0';    // its choices are auto and digits
}

/* A truth value; YAML's arrives as a word. */
static bool is_true(const json_t *v)
{
    return json_is_true(v) || (json_is_string(v) && strcmp(json_string_value(v), "true") == 0);
}

bool run_config_environments(const struct run_config *c, struct environments *e, struct error *err)
{
    const char *name;
    json_t *o = json_str_read(c->environments, 0, NULL), *v;
    const char *listen = json_string_value(json_object_get(o, "listen")), *url = json_string_value(json_object_get(o, "url"));
    const char *token_file = json_string_value(json_object_get(o, "token_file"));
    bool ok = true;
    json_object_foreach(o, name, v) if (strcmp(name, "listen") != 0 && strcmp(name, "url") != 0 && strcmp(name, "token_file") != 0
                                        && strcmp(name, "no_token") != 0)
        ok = error_set(err, ERR_USAGE, "'environments' has '%.60s'; it takes listen or url, token_file and no_token", name);
    if (ok && listen && url)
        ok = error_set(err, ERR_USAGE, "'environments' has both listen and url: environments post here, or to the server of that address");
    if (ok && !url && (!listen || !strchr(listen, ':') || strlen(listen) >= sizeof e->listen))
        ok = error_set(err, ERR_USAGE, "'environments' needs listen: HOST:PORT, e.g. {listen: 127.0.0.1:8000}, or url: http://HOST:PORT");
    if (ok && url && !url_check(url, sizeof e->url))
        ok = error_set(err, ERR_USAGE, "'environments': url is '%.100s'; it is http://HOST:PORT or https://HOST:PORT", url);
    if (ok && token_file && strlen(token_file) >= sizeof e->token_file)
        ok = error_set(err, ERR_USAGE, "'environments': the path of token_file is too long");
    if (ok && listen && !tcp_is_loopback(listen) && !token_file && !is_true(json_object_get(o, "no_token")))
        ok = error_set(err, ERR_USAGE,
                       "'environments': %.100s is reached from other hosts: give a token_file, or no_token: true if all of them may post",
                       listen);
    if (ok) {
        size_t len = url ? strlen(url) : 0;
        while (len > 0 && url[len - 1] == '/')
            len--;
        snprintf(e->listen, sizeof e->listen, "%s", listen ? listen : "");
        snprintf(e->url, sizeof e->url, "%.*s", (int)len, url ? url : "");
        snprintf(e->token_file, sizeof e->token_file, "%s", token_file ? token_file : "");
    }
    json_decref(o);
    return ok;
}

int64_t run_config_n_engine(const struct run_config *c)
{
    int64_t n = c->engine_url[0] != 0;
    for (const char *at = c->engine_url; (at = strchr(at, ',')); at++)
        n++;
    return n;
}

bool run_config_engine(const struct run_config *c, const char *device, char *url, size_t size)
{
    int64_t k;
    const char *at = c->engine_url;
    if (strncmp(device, "engine:", 7) != 0 || !parse_i64(device + 7, &k) || k < 0 || k >= run_config_n_engine(c))
        return false;
    while (k-- > 0)
        at = strchr(at, ',') + 1;
    at += strspn(at, " ");
    size_t len = strcspn(at, ",");
    while (len > 0 && (at[len - 1] == '/' || at[len - 1] == ' '))
        len--;
    return snprintf(url, size, "%.*s", (int)len, at) < (int)size;
}

int64_t run_config_serve_samples(const struct run_config *c)
{
    if (c->serve_samples > 0)
        return c->serve_samples;
    return run_config_posted(c) ? c->inference_microbatch_size * c->num_generations : 16;
}

bool run_config_groups_path(const struct run_config *c, const char *run_dir, char *out, size_t size)
{
    return c->rollout_save_dir[0] ? path_join(out, size, c->rollout_save_dir, "groups.zst")
                                  : path_join(out, size, run_dir, "rollouts/groups.zst");
}

bool run_config_travels(const struct run_config *c)
{
    if (run_config_posted(c))
        return false;
    return strcmp(c->placement, "apart") == 0 || c->num_inferencer > run_config_trainers_here(c)
           || (c->n_behind > 0 && c->num_inferencer > 1);
}

bool run_config_gap_possible(const struct run_config *c)
{
    int64_t n = c->node_only                         ? 1    // its part says whether it trains
                : strcmp(c->placement, "apart") == 0 ? c->num_inferencer - (c->serve[0] != 0)
                                                     : c->num_inferencer - run_config_trainers_here(c);
    return strcmp(c->fill_gap, "off") != 0 && c->n_behind > 0 && n > 0 && !run_config_posted(c) && !run_config_external(c)
           && !c->environment[0] && c->producer_tensor_parallel_size == 1;
}

bool run_config_first_evaluates(const struct run_config *c)
{
    bool others = strcmp(c->placement, "apart") == 0 && !c->free_running && !run_config_posted(c) && !run_config_external(c);
    return c->eval_dataset[0] && !others;
}

int eval_ks(int64_t n, int64_t k[EVAL_K_MAX])
{
    int n_k = 0;
    for (int64_t i = 1; i <= n && n_k < EVAL_K_MAX - 1; i *= 2)
        k[n_k++] = i;
    if (n_k && k[n_k - 1] != n)
        k[n_k++] = n;
    return n_k;
}

bool eval_pass_name(char out[64], const char *set, int64_t k)
{
    return snprintf(out, 64, "%s/pass_at_%" PRId64, set, k) < 64;
}
