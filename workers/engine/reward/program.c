/* program.c - the reward kind "program:CMD": the user's own program, asked over a pipe (line_program.h)
 *
 *     in   {"id": 7, "response": "...", "n_tok": 120, "finish": "stop" or "length", "row": {the dataset's line}}
 *     out  {"id": 7, "reward": 0.5, "format_acc": 1, "ans_acc": 0, "rule": "a word on why"}
 *     or   {"id": 7, "error": "why there is no score"}
 *     or   {"id": 7, "scope": "group"}
 * n_tok and finish are absent when unknown; a run with an environment adds "environment": {"reward": 4.5, "ans_acc": 1} and "transcript",
 * the whole conversation, of which the response is the last turn. An answer needs
 * only id and reward; true and false count as 1 and 0. An error, or no answer within the time limit, leaves the sample out of the group.
 *
 * The last answer, given to the very first question, asks for all responses of a prompt at once. From then on:
 *     in   {"id": 8, "responses": [{"response": "...", "n_tok": 120, "finish": "stop"}, ...], "row": {...}}
 *     out  {"id": 8, "rewards": [0.5, {"reward": 1, "ans_acc": 1, "rule": "..."}, {"error": "..."}, ...]}
 * or an error for all. A question of its own for the scope was considered; programs written before there was one would
 * have had to answer it.
 *
 * A program that ends is restarted and asked once more, as is one that has lost track after it had answered before; one
 * that overruns its time is killed with its process group and restarted for the next question. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/engine/reward/kind.h"
#include "workers/engine/reward/line_program.h"

struct program {
    struct line_program *lines;
    char *command;    // for the log
    enum {
        SCOPE_UNKNOWN,    // nothing has been answered yet
        SCOPE_SAMPLE,
        SCOPE_GROUP,
    } scope;
};

/* Append "key":"text". False: it is not UTF-8 (or there is no memory), so that JSON cannot hold it. */
static bool text_add(struct buf *b, const char *key, const char *s, size_t len)
{
    json_t *text = json_stringn(s, len);
    char *quoted = text ? json_text_dump(text, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(text);
    if (!quoted)
        return false;
    buf_fmt(b, "\"%s\":%s", key, quoted);
    free(quoted);
    return true;
}

/* The response as members of an object. False as text_add. */
static bool response_add(struct buf *b, const struct reward_input *in)
{
    if (!text_add(b, "response", in->response, in->response_len))
        return false;
    if (in->transcript && !(buf_char(b, ',') && text_add(b, "transcript", in->transcript, in->transcript_len)))
        return false;
    if (in->has_length && in->n_tok >= 0)
        buf_fmt(b, ",\"n_tok\":%" PRId64, in->n_tok);
    if (in->has_length)
        buf_fmt(b, ",\"finish\":\"%s\"", in->finish == FINISH_LENGTH ? "length" : "stop");
    if (in->has_environment)
        buf_fmt(b, ",\"environment\":{\"reward\":%.17g,\"ans_acc\":%d}", in->environment_reward, in->environment_acc > 0);
    return !b->failed;
}

/* The question about n responses of one prompt, as the scope has it. Other threads use the row too, so it is printed
 * rather than put into an object, which would change its reference count. */
static bool question_make(struct program *p, const struct reward_input *in, int64_t n)
{
    struct buf *b = line_program_question(p->lines);
    bool group = p->scope == SCOPE_GROUP, ok = true;
    buf_str(b, group ? ",\"responses\":[" : ",");
    for (int64_t i = 0; ok && i < n; i++) {
        buf_str(b, !group ? "" : i > 0 ? ",{" : "{");
        ok = response_add(b, &in[i]);
        buf_str(b, group ? "}" : "");
    }
    buf_str(b, group ? "]" : "");
    char *row = in->row ? json_text_dump(in->row, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    ok = ok && (row || !in->row);
    if (row)
        buf_fmt(b, ",\"row\":%s", row);
    free(row);
    return ok;
}

/* A number or a truth value; 0 and false: neither. */
static bool number_get(const json_t *o, const char *key, double *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_is_true(v);
    return json_is_boolean(v) || json_double_get(v, out);
}

/* 0 or 1; NAN: it does not say. */
static float accuracy_get(const json_t *o, const char *key)
{
    double v;
    return number_get(o, key, &v) && !isnan(v) ? v > 0 : NAN;
}

static void outputs_fail(struct reward_output *out, int64_t n, enum score_state score, const char *why)
{
    for (int64_t i = 0; i < n; i++) {
        out[i].score = score;
        snprintf(out[i].rule, sizeof out[i].rule, "program: %s", why);
    }
}

/* o: an object with a reward or an error. */
static void answer_use(const json_t *o, struct reward_output *out)
{
    const char *error = json_string_value(json_object_get(o, "error")), *rule = json_string_value(json_object_get(o, "rule"));
    char why[sizeof out->rule];
    if (error) {
        snprintf(why, sizeof why, "error: %s", error);
        outputs_fail(out, 1, SCORE_ERROR, why);
    } else if (!number_get(o, "reward", &out->reward)) {
        outputs_fail(out, 1, SCORE_ERROR, "no reward");
    } else if (!isfinite(out->reward)) {
        out->reward = 0;
        outputs_fail(out, 1, SCORE_ERROR, "no finite reward");
    } else {
        out->score = SCORE_OK;
        out->format_acc = accuracy_get(o, "format_acc");
        out->ans_acc = accuracy_get(o, "ans_acc");
        out->verdict = out->ans_acc > 0 ? VERDICT_EQUAL : VERDICT_DIFFERENT;
        snprintf(out->rule, sizeof out->rule, "%s", rule ? rule : "program");
    }
}

/* o: an object with n rewards, or one error. */
static void group_answer_use(const json_t *o, struct reward_output *out, int64_t n)
{
    const json_t *rewards = json_object_get(o, "rewards");
    const char *error = json_string_value(json_object_get(o, "error"));
    char why[sizeof out->rule];
    if (error || !json_is_array(rewards) || (int64_t)json_array_size(rewards) != n) {
        if (error)
            snprintf(why, sizeof why, "error: %s", error);
        else if (json_is_array(rewards))
            snprintf(why, sizeof why, "%zu rewards for %" PRId64 " responses", json_array_size(rewards), n);
        else
            snprintf(why, sizeof why, "no rewards");
        outputs_fail(out, n, SCORE_ERROR, why);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        json_t *one = json_array_get(rewards, (size_t)i), *wrapped = NULL;
        if (!json_is_object(one) && (wrapped = json_object()))
            json_object_set(wrapped, "reward", one);
        answer_use(wrapped ? wrapped : one, &out[i]);
        json_decref(wrapped);
    }
}

/* Ask about n responses until there is an answer; owned by the caller. NULL: out has been filled. */
static json_t *answer_get(struct program *p, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    struct error err = { 0 };
    json_t *answer = NULL;
    int64_t n_stray = line_program_strays(p->lines);
    if (!question_make(p, in, n)) {
        outputs_fail(out, n, SCORE_ERROR, "not UTF-8");
        return NULL;
    }
    bool old = line_program_runs(p->lines);    // a fault of a program that has answered before may be an earlier sample's doing
    for (int attempt = old ? -1 : 0; attempt < 2; attempt++) {
        if (line_program_ask(p->lines, &answer, &err))
            return answer;
        if (err.code != ERR_CLOSED && !(err.code == ERR_DATA && attempt < 0))
            break;
    }
    if (is_worth_a_line(line_program_starts(p->lines)))
        log_warn("reward program '%s': %s", p->command, err.text);
    bool late = err.code == ERR_TIMEOUT;
    outputs_fail(out, n, late ? SCORE_TIMEOUT : SCORE_ERROR,
                 late                     ? line_program_strays(p->lines) > n_stray ? "time-out after stray lines" : "time-out"
                 : err.code == ERR_CLOSED ? "it ended"
                 : err.code == ERR_DATA   ? "not an answer"
                                          : "error");
    return NULL;
}

/* Score n responses of one prompt with one question. */
static void group_score(struct program *p, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    int64_t start = clock_ns();
    json_t *answer = answer_get(p, in, out, n);
    if (answer)
        group_answer_use(answer, out, n);
    json_decref(answer);
    for (int64_t i = 0; i < n; i++)
        out[i].us = (double)(clock_ns() - start) / 1000 / (double)n;
}

/* False: the program wants the whole group, and nothing was scored. */
static bool sample_score(struct program *p, const struct reward_input *in, struct reward_output *out)
{
    int64_t start = clock_ns();
    json_t *answer = answer_get(p, in, out, 1);
    const char *scope = json_string_value(json_object_get(answer, "scope"));
    bool group = scope && strcmp(scope, "group") == 0;
    if (group && p->scope == SCOPE_UNKNOWN) {
        p->scope = SCOPE_GROUP;
        json_decref(answer);
        return false;
    }
    if (group)
        outputs_fail(out, 1, SCORE_ERROR, "wants the group only now");
    else if (answer)
        answer_use(answer, out);
    if (answer)
        p->scope = SCOPE_SAMPLE;
    json_decref(answer);
    out->us = (double)(clock_ns() - start) / 1000;
    return true;
}

static void program_score(void *self, UNUSED const struct reward_config *config, const struct reward_input *in, struct reward_output *out,
                          int64_t n)
{
    struct program *p = self;
    for (int64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && in[end].group == in[first].group;)
            end++;
        for (int64_t i = first; i < end && p->scope != SCOPE_GROUP; i++)
            if (!sample_score(p, &in[i], &out[i]))
                break;
        if (p->scope == SCOPE_GROUP)
            group_score(p, in + first, out + first, end - first);
    }
}

/* Until it has answered once, the program may want its groups whole. */
static bool program_wants_groups(void *self)
{
    return ((struct program *)self)->scope != SCOPE_SAMPLE;
}

static void program_close(void *self)
{
    struct program *p = self;
    line_program_free(p->lines);
    free(p->command);
    free(p);
}

static bool program_open(void **self, const struct reward_config *config, const char *arg, struct error *err)
{
    if (!*arg)
        return error_set(err, ERR_USAGE, "'program:' needs the command to run after it");
    struct program *p = calloc(1, sizeof *p);
    if (!p || !(p->command = strdup(arg))) {
        free(p);
        return error_set(err, ERR_NO_MEMORY, "no memory for a reward program");
    }
    p->lines = line_program_new("reward program", arg, config->program_timeout_s, config->program_errors, err);
    if (!p->lines) {
        program_close(p);
        return false;
    }
    *self = p;
    return true;
}

const struct reward_kind reward_kind_program = {
    .name = "program:",
    .open = program_open,
    .close = program_close,
    .score = program_score,
    .wants_groups = program_wants_groups,
};
