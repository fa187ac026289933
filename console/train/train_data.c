/* train_data.c - data, prompts and reward of a run, checked before it is made
 *
 * Every row of every set is read, checked by the reward and made a prompt by the code that the producers use; then the programs of the
 * run are asked about the first rows. So what would end the run, or leave all its samples out, ends the start. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <jansson.h>
#include "console/train/train_parts.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "protocol/run/node.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/files.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/data/row_level.h"
#include "workers/engine/reward/environment.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/harness/harness.h"

#define PROMPTS_SHOWN 3
#define SHOWN_BYTES 400       // of a prompt, from both its ends
#define ROWS_TRIED 8          // a program may have no score for some rows
#define ERRORS_BYTES 16384    // of what programs wrote, from its end

/* What the sets of a run are checked with; all owned but t. */
struct checks {
    struct train *t;
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct template *template;
    struct reward *reward;
    int errors;                   // a file in memory for what programs write on standard error
    struct prompt_maker maker;    // of the set being read
    struct token_list ids;
    int64_t n_fit;               // prompts of the set that are short enough
    struct row_levels levels;    // of these in the training set
    json_t *row[ROWS_TRIED];     // its first rows
    int n_row;
    bool shows;    // it is the training set
};

static bool checks_open(struct checks *k, struct error *err)
{
    struct verify_options options;
    const struct run_config *c = &k->t->config;
    struct reward_config reward = reward_config_of(c, &options);
    const char *from = run_config_tokenizer(c);
    if (utf8_valid_len((const uint8_t *)c->system_prompt, strlen(c->system_prompt), NULL, NULL) < strlen(c->system_prompt))
        return error_set(err, ERR_USAGE, "'system_prompt' is not UTF-8");
    if ((k->errors = memfd_create("errors", MFD_CLOEXEC)) < 0)
        return error_errno(err, "cannot make a file in memory");
    reward.program_errors = k->errors;
    return (k->reward = reward_new(&reward, err)) && (k->tokenizer = tokenizer_load(from, err))
           && (k->encoder = encoder_new(k->tokenizer, true, err)) && template_find(from, &k->template, err);
}

static void set_begin(struct checks *k)
{
    for (int i = 0; i < k->n_row; i++)
        json_decref(k->row[i]);
    k->n_row = 0;
    k->n_fit = 0;
    k->maker = prompt_maker_of(&k->t->config, k->encoder, k->template);
}

static void checks_release(struct checks *k)
{
    set_begin(k);
    token_list_release(&k->ids);
    template_free(k->template);
    encoder_free(k->encoder);
    tokenizer_free(k->tokenizer);
    reward_free(k->reward);
    if (k->errors >= 0)
        close(k->errors);
}

/* ---- rows ---- */

/* One line for the dry run: the prompt as JSON text, without the middle of a long one. */
static void prompt_show(struct checks *k)
{
    struct buf text = BUF_INIT, *out = &k->t->shown;
    if (tokenizer_decode(k->tokenizer, k->ids.id, k->ids.n, false, &text)) {
        const char *s = buf_text(&text);
        size_t head = utf8_cut(s, text.len, SHOWN_BYTES / 2), tail = text.len - MIN(text.len, SHOWN_BYTES / 2);
        while (tail < text.len && ((unsigned char)s[tail] & 0xC0) == 0x80)
            tail++;
        buf_fmt(out, "prompt %d:       ", k->n_row);
        json_text_print(out, s, text.len <= SHOWN_BYTES ? text.len : head, JSON_TEXT_UTF8);
        if (text.len > SHOWN_BYTES) {
            buf_str(out, " ... ");
            json_text_print(out, s + tail, text.len - tail, JSON_TEXT_UTF8);
        }
        buf_fmt(out, ", %" PRId64 " tokens\n", k->ids.n);
    }
    buf_release(&text);
}

static bool row_check(void *arg, const json_t *row, struct error *err)
{
    struct checks *k = arg;
    bool dropped;
    if (!reward_row_check(k->reward, row, err) || !prompt_make(&k->maker, row, &k->ids, &dropped, err))
        return false;
    uint8_t level;
    if (k->shows && !dropped && k->t->config.curriculum_levels > 1 && !row_level(row, &k->t->config, &level, &k->levels, err))
        return false;
    k->n_fit += !dropped;
    if (k->n_row == ROWS_TRIED)
        return true;
    k->row[k->n_row++] = json_incref((json_t *)(uintptr_t)row);
    if (k->shows && k->n_row <= PROMPTS_SHOWN && !dropped)
        prompt_show(k);
    return true;
}

static void notes_print(const struct checks *k, const char *name)
{
    struct buf notes = BUF_INIT;
    prompt_maker_notes(&k->maker, &notes);
    if (k->maker.n_dropped + k->maker.n_cut > 0)
        buf_fmt(&notes, "note: %" PRId64 " prompts of '%s' are longer than max_prompt_tokens %" PRId64 ", and are %s (long_prompt)\n",
                k->maker.n_dropped + k->maker.n_cut, name, k->maker.max_tok, k->maker.n_dropped > 0 ? "left out" : "cut from the left");
    fputs(buf_text(&notes), stderr);
    buf_release(&notes);
}

/* One set of data: pin its revision in path (size bytes), check every row, keep its hash under the name identity, and say what was
 * recognised. */
static bool set_check(struct checks *k, const char *identity, char *path, size_t size, const struct dataset_columns *columns,
                      struct error *err)
{
    struct train *t = k->t;
    set_begin(k);
    if (!data_name_pin(path, size, err))
        return false;
    struct dataset *d = dataset_open_checked(path, columns, row_check, k, err);
    if (!d)
        return false;
    bool ok = false;
    if (dataset_n_file(d) > NODE_DATA_FILES_MAX && t->config.listen[0]) {
        error_set(err, ERR_USAGE, "'%s' has %d files, and nodes take at most %d; put them together, or leave 'listen' away", path,
                  dataset_n_file(d), NODE_DATA_FILES_MAX);
        goto out;
    }
    if (k->n_fit == 0) {
        prompt_none_fits(&k->maker, path, k->row[0], err);
        goto out;
    }
    TRY(!k->shows || t->config.curriculum_levels == 1 || row_levels_check(&k->levels, &t->config, err));
    buf_fmt(&t->about, "%s, %" PRId64 " prompts: ", path, dataset_n_row(d));
    dataset_describe(d, &t->about);
    buf_char(&t->about, '\n');
    notes_print(k, path);
    ok = identity_add(t->identity, identity, dataset_hash(d), err);
out:
    dataset_free(d);
    return ok;
}

/* The reward's own system prompt is in force though nobody has asked for it. */
static void system_note(const struct checks *k)
{
    struct buf text = BUF_INIT;
    buf_str(&text, "note: prompts have the system prompt ");
    prompt_maker_system(&k->maker, &text);
    fputs(buf_text(&text), stderr);
    buf_release(&text);
}

/* ---- how answers end ---- */

static void token_print(const struct checks *k, struct buf *out, int32_t id)
{
    struct buf text = BUF_INIT;
    if (tokenizer_decode(k->tokenizer, &id, 1, false, &text))
        json_text_print(out, buf_text(&text), text.len, JSON_TEXT_UTF8);
    buf_fmt(out, " (%d)", id);
    buf_release(&text);
}

/* A sample that has no way to end is cut, whatever the model has learned: its end token must be known, and be the one that the chat
 * template writes. */
static bool end_check(struct checks *k, struct error *err)
{
    const struct run_config *c = &k->t->config;
    const char *stop = reward_stop_string(c->reward_type), *from = run_config_tokenizer(c);
    struct token_list after = { 0 };
    struct buf *out = &k->t->shown, its = BUF_INIT;
    int n;
    const int32_t *eos = tokenizer_eos(k->tokenizer, &n);
    bool ok = prompt_answer_end(&k->maker, &after, err), ends = after.n == 0;
    for (int64_t i = 0; i < after.n; i++)
        ends = ends || tokenizer_is_eos(k->tokenizer, after.id[i]);
    if (after.n > 0)
        token_print(k, &its, after.id[0]);
    if (ok && n == 0 && !stop && !run_config_external(c))
        ok = error_set(err, ERR_DATA,
                       "'%s' names no end token, so that every answer would be cut at max_new_tokens%s%s; give its text as 'eos_token' in "
                       "tokenizer_config.json, or its id as 'eos_token_id' in generation_config.json",
                       from, its.len > 0 ? "; its chat template ends answers with " : "", buf_text(&its));
    else if (ok && !ends && !stop)
        fprintf(stderr,
                "note: the chat template ends answers with %s, which is no end token of '%s'; if answers are cut, add its id to "
                "'eos_token_id' in generation_config.json\n",
                buf_text(&its), from);
    buf_str(out, "answers end:    with ");
    for (int i = 0; i < n && !stop; i++) {
        buf_str(out, i > 0 ? ", " : "");
        token_print(k, out, eos[i]);
    }
    buf_fmt(out, "%s\n", stop ? stop : n == 0 ? "what the engines take for an end token" : "");
    token_list_release(&after);
    buf_release(&its);
    return ok;
}

/* ---- programs ---- */

/* Print what programs have written, and return the last line of it for messages, "" or "; it wrote '...' on standard error". */
static const char *errors_tell(const struct checks *k, char *out, size_t size)
{
    char text[ERRORS_BYTES + 1];
    off_t end = lseek(k->errors, 0, SEEK_END);
    ssize_t n = end > 0 ? pread(k->errors, text, ERRORS_BYTES, end - MIN(end, (off_t)ERRORS_BYTES)) : 0;
    out[0] = 0;
    if (n <= 0)
        return out;
    fwrite(text, 1, (size_t)n, stderr);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    text[n] = 0;
    char *last = strrchr(text, '\n');
    last = last ? last + 1 : text;
    for (char *p = last; *p; p++)
        *p = (unsigned char)*p < ' ' ? ' ' : *p;
    if (*last)
        snprintf(out, size, "; it wrote \"%.*s\" on standard error", (int)utf8_cut(last, strlen(last), 300), last);
    return out;
}

/* Does the environment begin an episode with the first row? A program that cannot would leave every sample out. */
static bool environment_try(struct checks *k, struct error *err)
{
    const struct run_config *c = &k->t->config;
    struct turn_answer a = { .state = SCORE_NONE };
    char said[400];
    bool ok = false;
    char *row = json_text_dump(k->row[0], JSON_COMPACT);
    struct environment *e = NULL;
    TRY(row || error_set(err, ERR_NO_MEMORY, "no memory for a row"));
    TRY(e = environment_new(c->environment + strlen("program:"), c->environment_timeout_s, k->errors, err));
    environment_turn(e, &(struct turn){ .row = row }, &a);
    environment_free(e);    // then all that the program has said is there
    e = NULL;
    errors_tell(k, said, sizeof said);
    ok = a.state == SCORE_OK
         || error_set(err, ERR_DATA, "'environment' does not begin with the first row of '%s': %s%s", c->dataset, a.reason, said);
out:
    environment_free(e);
    free(a.json);
    free(row);
    return ok;
}

/* Does the harness's program ask for something when a session begins with the first row? */
static bool harness_begins(struct checks *k, struct error *err)
{
    const struct run_config *c = &k->t->config;
    struct turn_answer a = { .state = SCORE_NONE };
    struct harness_config config = { .command = run_config_harness(c),
                                     .model = c->name,
                                     .dir = "",
                                     .max_sessions = 1,
                                     .timeout_s = c->session_timeout_s,
                                     .max_turns = 1,
                                     .errors = k->errors };
    char said[400];
    char *row = json_text_dump(k->row[0], JSON_COMPACT);
    if (!row)
        return error_set(err, ERR_NO_MEMORY, "no memory for a row");
    bool ok = harness_try(&config, &(struct turn){ .row = row }, &a, err);
    free(row);
    if (!ok)
        return false;
    errors_tell(k, said, sizeof said);
    json_t *answer = a.json ? json_str_read(a.json, JSON_ALLOW_NUL, NULL) : NULL;
    bool asks = a.state == SCORE_OK && json_object_get(answer, "request");
    const char *why = a.state != SCORE_OK ? a.reason : "harness: it has ended without asking the model";
    json_decref(answer);
    free(a.json);
    return asks || error_set(err, ERR_DATA, "'environment' does not begin with the first row of '%s': %s%s", c->dataset, why, said);
}

/* Two answers to a row, so that a program that compares answers has some: what the row says is right, and another one. */
static void answers_make(const json_t *row, struct reward_input in[2])
{
    const json_t *right = json_object_get(row, "gt_answer");
    const char *text[2] = { json_is_string(right) ? json_string_value(right) : "1", "I do not know." };
    for (int i = 0; i < 2; i++)
        in[i] = (struct reward_input){
            .response = text[i], .response_len = strlen(text[i]), .row = row, .has_length = true, .n_tok = 8, .finish = FINISH_STOP
        };
}

/* Why an output has no score, where that is a program's doing, in words; NULL otherwise. */
static const char *blame(const struct reward_output *out)
{
    if (out->score == SCORE_OK)
        return NULL;
    const char *own = strstr(out->rule, "program: ");
    if (own)
        return own + strlen("program: ");
    return strncmp(out->rule, "the reward ", strlen("the reward ")) == 0 ? out->rule : NULL;    // beyond its bound
}

/* What is wrong with a program that has given these two outputs, in words, or NULL. An error that it answers with counts only when it
 * does for both. */
static const char *program_fault(const struct reward_output out[2])
{
    const char *why[2], *error[2];
    for (int i = 0; i < 2; i++) {
        why[i] = blame(&out[i]);
        error[i] = why[i] && strncmp(why[i], "error: ", strlen("error: ")) == 0 ? why[i] : NULL;
        if (why[i] && !error[i])
            return why[i];
    }
    return error[0] && error[1] ? error[0] : NULL;
}

/* Does a reward program score answers? One that answers with an error is asked about further rows: that may be the row's fault. */
static bool program_try(struct checks *k, struct error *err)
{
    const struct run_config *c = &k->t->config;
    struct reward_input in[2];
    struct reward_output out[2];
    const char *fault = NULL;
    char said[400], limit[64] = "";
    bool refuses = true;
    for (int i = 0; i < k->n_row && refuses; i++) {
        answers_make(k->row[i], in);
        reward_score(k->reward, in, out, 2);
        fault = program_fault(out);
        refuses = fault && strncmp(fault, "error: ", strlen("error: ")) == 0;
    }
    if (fault) {
        reward_free(k->reward);    // then all that the program has said is there
        k->reward = NULL;
    }
    errors_tell(k, said, sizeof said);
    if (!fault)
        return true;
    if (strncmp(fault, "time-out", strlen("time-out")) == 0)
        snprintf(limit, sizeof limit, " ('reward_timeout_s' is %g)", c->reward_timeout_s);
    if (refuses)
        return error_set(err, ERR_DATA, "'reward_type' scores none of the first %d rows of '%s': %s%s", k->n_row, c->dataset, fault, said);
    return error_set(err, ERR_DATA, "'reward_type' does not answer when it is asked about the first row of '%s': %s%s%s", c->dataset, fault,
                     limit, said);
}

/* A run that goes on has asked its programs. A job asks them again where it starts; what is wrong is known here before the job waits for
 * its nodes. */
static bool programs_try(struct checks *k, struct error *err)
{
    const struct run_config *c = &k->t->config;
    if (k->t->attached)
        return true;
    if (run_config_harness(c))
        return harness_begins(k, err);
    return c->environment[0] ? environment_try(k, err) : !strstr(c->reward_type, "program:") || program_try(k, err);
}

/* ---- the whole ---- */

/* Put the pinned path of an evaluation set into the settings. */
static bool eval_path_set(struct run_config *c, const struct eval_set *set, struct error *err)
{
    json_t *root = json_str_read(c->eval_dataset, 0, NULL), *one = json_object_get(root, set->name);
    bool put = one && json_object_set_new(one, "path", json_string(set->path)) == 0;
    char *text = put ? json_text_dump(root, JSON_COMPACT) : NULL;
    bool ok = text && strlen(text) < sizeof c->eval_dataset;
    if (ok)
        strcpy(c->eval_dataset, text);
    free(text);
    json_decref(root);
    return ok || error_set(err, ERR_USAGE, "'eval_dataset' is longer than %zu bytes", sizeof c->eval_dataset - 1);
}

bool data_check(struct train *t, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    struct run_config *c = &t->config;
    const struct dataset_columns columns = { c->prompt_column, c->answer_column, c->prompt_template };
    struct checks k = { .t = t, .errors = -1 };
    char name[96];
    struct error none;
    bool ok = false;
    int n = run_config_eval_sets(c, set, err);
    if (n < 0)
        return false;
    bool own = !run_config_posted(c);    // else the training prompts are the environments'
    if (own && c->source[knob_find("dataset", &none) - knobs] == FROM_DEFAULT && !path_exists(c->dataset))
        return error_set(err, ERR_USAGE,
                         "no dataset is given, and there is no 'data.jsonl' here; give one with --dataset, or as 'dataset' in the run "
                         "file: a file of JSON lines, CSV or Parquet, a folder, or ORG/NAME of the hub");
    TRY(checks_open(&k, err));
    t->n_row = 1;
    if (own) {
        k.shows = true;
        TRY(set_check(&k, "dataset", c->dataset, sizeof c->dataset, &columns, err));
        k.shows = false;
        t->n_row = k.n_fit;
        buf_str(&t->shown, "system prompt:  ");
        prompt_maker_system(&k.maker, &t->shown);
        if (k.maker.n_system > 0 && k.maker.system_is_rewards && !t->dry_run)
            system_note(&k);
        TRY(end_check(&k, err));
        TRY(programs_try(&k, err));
    }
    for (int i = 0; i < n; i++) {
        const struct dataset_columns its = { set[i].prompt_column, set[i].answer_column, set[i].prompt_template };
        snprintf(name, sizeof name, "eval_dataset %s", set[i].name);
        if (!set_check(&k, name, set[i].path, sizeof set[i].path, &its, err)) {
            error_wrap(err, "evaluation set '%s'", set[i].name);
            goto out;
        }
        TRY(eval_path_set(c, &set[i], err));
    }
    ok = true;
out:
    checks_release(&k);
    return ok;
}
