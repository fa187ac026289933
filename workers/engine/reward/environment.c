#include "workers/engine/reward/environment.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/engine/reward/line_program.h"
#include "workers/engine/template/tool_calls.h"

#define EPISODES_MAX 1024    // that a program is asked to keep; the longest unused is ended for another one

/* An episode as the program has it. */
struct episode {
    int64_t item, sample, seed;
    int64_t start;     // of the program, by line_program_starts; 0: nothing is here
    int64_t n_text;    // turns it has played
    uint64_t hash;     // of their texts and the row
    int64_t used;      // when it was last asked about, in questions
    bool over;
    char *json;    // its last answer; owned
};
struct environment {
    struct line_program *lines;
    char *command;    // for the log
    int64_t n_ask;
    struct episode episode[EPISODES_MAX];
};

/* FNV-1a, 64 bits, with the ending 0 as a separator. */
static uint64_t text_hash(uint64_t h, const char *text)
{
    do {
        h = (h ^ (uint8_t)*text) * 0x100000001b3u;
    } while (*text++);
    return h;
}

static uint64_t turn_hash(const struct turn *t, int64_t n_text)
{
    uint64_t h = text_hash(0xcbf29ce484222325u, t->row);
    for (int64_t i = 0; i < n_text; i++)
        h = text_hash(h, t->text[i]);
    return h;
}

static void episode_drop(struct episode *p)
{
    free(p->json);
    *p = (struct episode){ 0 };
}

/* ---- questions ---- */

/* Append ,"key":"text". */
static bool text_add(struct buf *b, const char *key, const char *text, size_t len)
{
    json_t *s = json_stringn(text, len);
    char *quoted = s ? json_text_dump(s, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    if (quoted)
        buf_fmt(b, ",\"%s\":%s", key, quoted);
    free(quoted);
    return quoted != NULL;
}

static struct buf *question_begin(struct environment *e, const char *op, int64_t item, int64_t sample)
{
    struct buf *b = line_program_question(e->lines);
    buf_fmt(b, ",\"op\":\"%s\",\"episode\":\"%" PRId64 ".%" PRId64 "\"", op, item, sample);
    return b;
}

static void reset_question(struct environment *e, const struct turn *t)
{
    struct buf *b = question_begin(e, "reset", t->item, t->sample);
    buf_fmt(b, ",\"item\":%" PRId64 ",\"sample\":%" PRId64 ",\"seed\":%" PRId64 ",\"row\":%s", t->item, t->sample, t->seed, t->row);
}

/* False: the text is not UTF-8, or there is no memory. */
static bool step_question(struct environment *e, const struct turn *t, const char *text)
{
    struct tool_calls calls;
    struct buf *b = question_begin(e, "step", t->item, t->sample);
    if (!tool_calls_find(&calls, text, strlen(text), NULL))
        return false;
    bool ok = text_add(b, "text", text, strlen(text)) && text_add(b, "content", buf_text(&calls.content), calls.content.len);
    buf_str(b, ",\"tool_calls\":[");
    for (int i = 0; ok && i < calls.n; i++) {
        json_t *arguments = json_str_read(calls.call[i].arguments, 0, NULL);    // a text that is no object is passed on as a text
        json_t *call = json_pack("{s:s, s:o}", "name", calls.call[i].name, "arguments",
                                 json_is_object(arguments) ? arguments : json_string(calls.call[i].arguments));
        char *line = call ? json_text_dump(call, JSON_COMPACT) : NULL;
        if (!json_is_object(arguments))
            json_decref(arguments);
        json_decref(call);
        ok = line && buf_fmt(b, "%s%s", i > 0 ? "," : "", line);
        free(line);
    }
    buf_char(b, ']');
    tool_calls_release(&calls);
    return ok;
}

/* ---- episodes ---- */

/* Where t's episode is, or may be put: its own place, a free one, or that of the longest unused. */
static struct episode *episode_place(struct environment *e, const struct turn *t)
{
    struct episode *best = &e->episode[0];
    for (int i = 0; i < EPISODES_MAX; i++) {
        struct episode *p = &e->episode[i];
        if (p->start && p->item == t->item && p->sample == t->sample)
            return p;
        if (p->start == 0 ? best->start != 0 : p->used < best->used && best->start != 0)
            best = p;
    }
    return best;
}

/* Take p for t's episode, ending another one that was there and is not over. */
static void episode_take(struct environment *e, struct episode *p, const struct turn *t)
{
    bool other = p->start && (p->item != t->item || p->sample != t->sample);
    if (other && !p->over && p->start == line_program_starts(e->lines) && line_program_runs(e->lines)) {
        struct error err;
        json_t *answer = NULL;
        question_begin(e, "end", p->item, p->sample);
        if (!line_program_ask(e->lines, &answer, &err))
            log_warn("environment '%s': at the end of an episode: %s", e->command, err.text);
        json_decref(answer);
    }
    episode_drop(p);
    p->item = t->item;
    p->sample = t->sample;
    p->seed = t->seed;
}

/* Ask the question that has been made and keep its answer with p. */
static bool episode_ask(struct environment *e, struct episode *p, struct error *err)
{
    json_t *answer = NULL;
    if (!line_program_ask(e->lines, &answer, err))
        return false;
    p->start = line_program_starts(e->lines);
    p->over = json_is_true(json_object_get(answer, "done")) || json_object_get(answer, "error");
    free(p->json);
    p->json = json_text_dump(answer, JSON_COMPACT);
    json_decref(answer);
    return p->json || error_set(err, ERR_NO_MEMORY, "no memory for its answer");
}

/* Play t to its end: its last text alone where the program has played the others, else everything from the reset. */
static bool episode_play(struct environment *e, struct episode *p, const struct turn *t, struct error *err)
{
    bool here = p->start && p->start == line_program_starts(e->lines) && line_program_runs(e->lines) && p->item == t->item
                && p->sample == t->sample && p->seed == t->seed && p->n_text <= t->n_text && p->hash == turn_hash(t, p->n_text);
    if (here && t->n_text > 0 && p->n_text == t->n_text)
        return true;
    if (!here || t->n_text == 0 || p->n_text < t->n_text - 1) {
        episode_take(e, p, t);
        reset_question(e, t);
        if (!episode_ask(e, p, err))
            return false;
    }
    for (int64_t i = p->n_text; i < t->n_text && !p->over; i++) {
        if (!step_question(e, t, t->text[i]))
            return error_set(err, ERR_DATA, "the turn is not UTF-8");
        if (!episode_ask(e, p, err))
            return false;
        p->n_text = i + 1;
    }
    p->n_text = t->n_text;
    p->hash = turn_hash(t, t->n_text);
    return true;
}

static void answer_fail(struct turn_answer *out, enum score_state state, const char *why)
{
    out->state = state;
    snprintf(out->reason, sizeof out->reason, "environment: %s", why);
}

/* The answer that p ended with. */
static void answer_use(const struct episode *p, struct turn_answer *out)
{
    json_t *o = json_str_read(p->json, 0, NULL);
    const char *error = json_string_value(json_object_get(o, "error"));
    double reward;
    if (error)
        answer_fail(out, SCORE_ERROR, error);
    else if (json_double_get(json_object_get(o, "reward"), &reward) && !isfinite(reward))
        answer_fail(out, SCORE_ERROR, "no finite reward");
    else if (!(out->json = strdup(p->json)))
        answer_fail(out, SCORE_ERROR, "no memory");
    else
        out->state = SCORE_OK;
    json_decref(o);
}

void environment_turn(struct environment *e, const struct turn *t, struct turn_answer *out)
{
    struct error err = { 0 };
    struct episode *p = episode_place(e, t);
    *out = (struct turn_answer){ .state = SCORE_ERROR };
    bool old = line_program_runs(e->lines);    // a fault of a program that has answered before may be another episode's doing
    for (int attempt = old ? -1 : 0; attempt < 2; attempt++) {
        if (episode_play(e, p, t, &err)) {
            p->used = ++e->n_ask;
            answer_use(p, out);
            return;
        }
        episode_drop(p);
        if (err.code != ERR_CLOSED && !(err.code == ERR_DATA && attempt < 0))
            break;
    }
    if (is_worth_a_line(line_program_starts(e->lines)))
        log_warn("environment '%s': %s", e->command, err.text);
    answer_fail(out, err.code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR,
                err.code == ERR_TIMEOUT  ? "time-out"
                : err.code == ERR_CLOSED ? "it ended"
                : err.code == ERR_DATA   ? "not an answer"
                                         : "error");
}

void environment_free(struct environment *e)
{
    if (!e)
        return;
    line_program_free(e->lines);
    for (int i = 0; i < EPISODES_MAX; i++)
        free(e->episode[i].json);
    free(e->command);
    free(e);
}

struct environment *environment_new(const char *command, double timeout_s, int errors, struct error *err)
{
    struct environment *e = calloc(1, sizeof *e);
    if (!e || !(e->command = strdup(command))) {
        free(e);
        error_set(err, ERR_NO_MEMORY, "no memory for an environment");
        return NULL;
    }
    e->lines = line_program_new("environment", command, timeout_s, errors, err);
    if (!e->lines) {
        environment_free(e);
        return NULL;
    }
    return e;
}
