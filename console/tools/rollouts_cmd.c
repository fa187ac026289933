/* rollcall rollouts: print the rollouts that a run has stored, as JSON lines or as ColossalChat's rollout log */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tools/jsonl.h"
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/journal.h"
#include "protocol/record/prompt_lines.h"
#include "protocol/record/rollout_file.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/message.h"
#include "workers/engine/sampler/eval.h"

/* Sample 0 of a prompt, for the log. */
struct log_text {
    int64_t rollout_step, item, version;
    int64_t order;    // position in the file: when an item was generated twice, the later one counts
    char *text;       // owned
};
struct rollouts {
    int64_t step, item, row, on_line, every;
    struct buf lines;    // where the prompts stand (prompt_lines.h); empty: not known
    bool ids, log;
    char path[4200];
    struct buf line;
    struct log_text *text;    // (n_text)
    int64_t n_text, cap;
};

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* A text field as JSON; null when it is absent. */
static json_t *text_field(const struct mval *map, const char *name)
{
    size_t len;
    const char *text = mval_str(mval_get(map, name), &len);
    return text ? json_text(text, len) : json_null();
}

/* map: the group's message, which also says how many bytes of text each token gave. */
static void ids_set(json_t *json, const struct mval *map, const struct group *g, const struct sample *s)
{
    size_t len = 0;
    const char *piece = mval_bin(mval_get(map, "piece"), &len);
    json_t *pieces = piece && len == (size_t)g->n_tok * sizeof(uint16_t) ? json_array() : json_null();
    for (int64_t i = 0; json_is_array(pieces) && i < s->n_tok; i++) {
        uint16_t n;
        memcpy(&n, piece + (size_t)(s->first_tok + i) * sizeof n, sizeof n);
        json_array_append_new(pieces, json_integer(n));
    }
    json_t *entropy = g->has_entropy ? json_array() : NULL;
    json_t *prompt = json_array(), *ids = json_array(), *logp = json_array(), *mask = json_array();
    for (int64_t i = 0; i < g->n_prompt; i++)
        json_array_append_new(prompt, json_integer(g->prompt[i]));
    for (int64_t i = 0; i < s->n_tok; i++) {
        json_array_append_new(ids, json_integer(g->token[s->first_tok + i]));
        json_array_append_new(logp, g->no_logp ? json_null() : number((double)g->logp[s->first_tok + i]));
        if (entropy)
            json_array_append_new(entropy, number((double)g->entropy[s->first_tok + i]));
        json_array_append_new(mask, json_integer(g->mask[s->first_tok + i]));
    }
    json_object_set_new(json, "prompt_ids", prompt);
    json_object_set_new(json, "ids", ids);
    json_object_set_new(json, "logprobs", logp);
    if (entropy)
        json_object_set_new(json, "entropies", entropy);
    json_object_set_new(json, "mask", mask);
    json_object_set_new(json, "text_bytes", pieces);
}

static bool sample_print(struct rollouts *r, const struct mval *map, const struct group *g, int32_t i, struct error *err)
{
    const struct sample *s = &g->sample[i];
    bool scored = s->score == SCORE_OK;
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:i, s:f}", "item", (json_int_t)g->item, "row", (json_int_t)g->prompt_row,
                             "rollout_step", (json_int_t)g->rollout_step, "version", (json_int_t)g->weight_version, "sample", (int)i,
                             "temperature", (double)g->temperature);
    int64_t on_line = prompt_line(&r->lines, g->prompt_row);
    json_object_set_new(json, "line", on_line > 0 ? json_integer(on_line) : json_null());
    json_object_set_new(json, "prompt", text_field(map, "prompt_text"));
    json_object_set_new(json, "text", text_field(mval_at(mval_get(map, "samples"), i), "text"));
    json_object_set_new(json, "gold", text_field(map, "gold"));
    json_object_set_new(json, "n_tok", json_integer(s->n_tok));
    json_object_set_new(json, "finish_reason", json_string(s->finish == FINISH_STOP ? "stop" : "length"));
    json_object_set_new(json, "scored", json_boolean(scored));
    json_object_set_new(json, "reward", scored ? number(s->reward) : json_null());
    json_object_set_new(json, "format_acc", scored ? number((double)s->format_acc) : json_null());
    json_object_set_new(json, "ans_acc", scored ? number((double)s->ans_acc) : json_null());
    json_object_set_new(json, "reason", json_text(s->reason, strlen(s->reason)));
    if (r->ids)
        ids_set(json, map, g, s);
    char *text = json_text_dump(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    bool ok = text && json_line_print(text, stdout);
    free(text);
    json_decref(json);
    return ok || error_set(err, ERR_IO, "cannot print a rollout");
}

/* Keep prompt and answer of sample 0. */
static bool text_keep(struct rollouts *r, const struct mval *map, const struct group *g, struct error *err)
{
    if (r->n_text == r->cap) {
        int64_t cap = r->cap ? r->cap * 2 : 256;
        struct log_text *grown = realloc(r->text, (size_t)cap * sizeof *grown);
        if (!grown)
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " texts", cap);
        r->text = grown;
        r->cap = cap;
    }
    char *text = group_text(map, err);
    if (!text)
        return false;
    r->text[r->n_text] = (struct log_text){ g->rollout_step, g->item, g->weight_version, r->n_text, text };
    r->n_text++;
    return true;
}

static bool record_take(struct rollouts *r, const struct buf *record, struct error *err)
{
    struct msg_in in = { 0 };
    if (!msg_read_request(&in, record->data, record->len, err))
        return false;
    struct group *g = in.type == MSG_GROUP ? group_read(in.root, err) : NULL;
    bool ok = g != NULL || (in.type != MSG_GROUP && error_set(err, ERR_DATA, "a record is not a rollout group"));
    bool wanted = ok && (r->step < 0 || g->rollout_step == r->step) && (r->item < 0 || g->item == r->item)
                  && (r->row < 0 || g->prompt_row == r->row) && (r->on_line < 0 || prompt_line(&r->lines, g->prompt_row) == r->on_line);
    if (wanted && r->log)
        ok = text_keep(r, in.root, g, err);
    for (int32_t i = 0; ok && wanted && !r->log && i < g->n_sample; i++)
        ok = sample_print(r, in.root, g, i, err);
    group_free(g);
    msg_in_release(&in);
    return ok;
}

static int text_compare(const void *a, const void *b)
{
    const struct log_text *x = a, *y = b;
    if (x->rollout_step != y->rollout_step)
        return x->rollout_step < y->rollout_step ? -1 : 1;
    if (x->item != y->item)
        return x->item < y->item ? -1 : 1;
    return x->order < y->order ? 1 : -1;    // the later one first
}

/* One line for the first rollout step, and for each one whose weights are `every` optimizer steps past the last one's. */
static bool log_print(struct rollouts *r, struct error *err)
{
    bool ok = true, any = false;
    int64_t last = 0;
    if (r->n_text)
        qsort(r->text, (size_t)r->n_text, sizeof *r->text, text_compare);
    const char **text = malloc(((size_t)r->n_text + 1) * sizeof *text);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " texts", r->n_text);
    for (int64_t i = 0, next; ok && i < r->n_text; i = next) {
        int64_t n = 0;
        for (next = i; next < r->n_text && r->text[next].rollout_step == r->text[i].rollout_step; next++)
            if (next == i || r->text[next].item != r->text[next - 1].item)
                text[n++] = r->text[next].text;
        if (any && r->text[i].version - last < r->every)
            continue;
        any = true;
        last = r->text[i].version;
        buf_clear(&r->line);
        ok = rollout_log_line(&r->line, last, text, n, err)
             && (json_line_print(r->line.data, stdout) || error_errno(err, "cannot print the log"));
    }
    free(text);
    return ok;
}

/* The file that name refers to: itself, or that of a run, by the run's directory. */
static bool file_find(struct rollouts *r, const char *name, struct error *err)
{
    char settings[PATH_MAX];
    if (!path_is_dir(name))
        return (size_t)snprintf(r->path, sizeof r->path, "%s", name) < sizeof r->path
               || error_set(err, ERR_USAGE, "the path '%.100s...' is too long", name);
    struct run_config *c = malloc(sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for the run's settings");
    run_config_init(c);
    bool fits = path_join(settings, sizeof settings, name, "run.yaml");
    bool ok = !fits || !path_exists(settings) || run_config_read(c, settings, err);    // without them: where a run has its rollouts
    if (ok && !(fits && run_config_groups_path(c, name, r->path, sizeof r->path)))
        ok = error_set(err, ERR_USAGE, "the path '%.100s...' is too long", name);
    free(c);
    return ok;
}

/* Where the prompts stand is in the journal of the run, if that is what was named. */
static bool lines_find(struct rollouts *r, const char *name, struct error *err)
{
    struct error why;
    bool found = false;
    struct journal *j = path_is_dir(name) ? journal_open_reader(name, &why) : NULL;
    bool ok = !j || journal_value_get(j, "lines", &r->lines, &found, err);
    journal_close(j);
    if (ok && r->on_line >= 0 && r->lines.len == 0)
        ok = error_set(err, ERR_NOT_FOUND,
                       "where the prompts stand in the dataset's file is not known for '%s'; --row counts those that are used", name);
    return ok;
}

static bool rollouts_cmd(int argc, char **argv, struct error *err)
{
    struct rollouts r = { .step = -1, .item = -1, .row = -1, .on_line = -1, .every = 20 };
    const char *operand[1];
    struct cli_option options[] = {
        { "step", NULL, CLI_I64, &r.step, "N", "only rollout step N" },
        { "item", NULL, CLI_I64, &r.item, "N", "only item N" },
        { "line", NULL, CLI_I64, &r.on_line, "N", "only the prompt on line N of the dataset's file, from 1" },
        { "row", NULL, CLI_I64, &r.row, "N", "only prompt N of those that are used, from 0" },
        { "ids", NULL, CLI_FLAG, &r.ids, NULL,
          "include prompt_ids, ids, logprobs, entropies (rollout_entropy), mask, and the bytes of text that each token gave" },
        { "log", NULL, CLI_FLAG, &r.log, NULL, "{\"train_step\":N,\"rollout\":[TEXT...]}: sample 0 of each prompt" },
        { "every", NULL, CLI_I64, &r.every, "N", "with --log: optimizer steps between two lines (default 20)" },
    };
    struct cli cli = { .command = "rollcall rollouts",
                       .operands = "RUN|FILE.zst",
                       .operand = operand,
                       .max_operands = 1,
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Prints what a run has sampled, one line of JSON per sample, in the order of arrival. Works "
                                "during the run, too." };
    struct rollout_reader *reader = NULL;
    struct buf record = { .max = ROLLOUT_RECORD_MAX + 1 };
    struct error damage;
    int n_damaged = 0;
    bool ok = false, more;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (cli.n_operands != 1)
        return error_set(err, ERR_USAGE, "the run's directory or a rollout file is needed");
    if (r.every < 1)
        return error_set(err, ERR_USAGE, "--every is %" PRId64 "; it must be at least 1", r.every);
    TRY(file_find(&r, operand[0], err) && lines_find(&r, operand[0], err));
    TRY((reader = rollout_reader_new(r.path, err)) != NULL);
    for (;;) {
        struct error why = { 0 };
        if (!rollout_reader_next(reader, &record, &more, &why)) {
            if (why.code != ERR_DATA) {
                *err = why;
                goto out;
            }
            if (n_damaged++ == 0)
                damage = why;
            continue;
        }
        if (!more)
            break;
        if (!record_take(&r, &record, err)) {
            error_wrap(err, "'%s'", r.path);
            goto out;
        }
    }
    TRY(!r.log || log_print(&r, err));
    ok = n_damaged == 0
         || error_set(err, ERR_DATA, "%s (%d damaged place%s; all other records are printed)", damage.text, n_damaged,
                      n_damaged == 1 ? "" : "s");
out:
    rollout_reader_free(reader);
    for (int64_t i = 0; i < r.n_text; i++)
        free(r.text[i].text);
    free(r.text);
    buf_release(&record);
    buf_release(&r.line);
    buf_release(&r.lines);
    return ok;
}

const struct subcommand rollouts_subcommand = { "rollouts", rollouts_cmd, "print what a run has sampled" };
