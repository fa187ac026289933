/* episodes.c - the life of an item with an environment
 *
 * ASKED (episodes_submit: the environment is asked how it begins) -> READY (item_begin, with the answer) -> its samples DRAW
 * (ready_submit). A sample whose turn has ended (turn_end) is ASKED and, with the answer (turn_take), READY again or OVER. When all
 * samples are OVER the group is made (item_finish). The generator knows an item by a number of ours in prompt_row: the serial, which
 * is never given twice, and the first of its samples. Tokens are taken as they are drawn (episodes_watch), so that a sample need not
 * wait for the slowest of its group; the generator's own groups are dropped. */
#include "workers/worker/episodes.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "workers/engine/data/conversation.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/model/model.h"
#include "workers/engine/reward/environment_pool.h"
#include "workers/engine/sampler/completion.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/worker/items.h"
#include "workers/worker/session.h"
#include "workers/worker/episodes_parts.h"

#define ITEM_MAX 4096    // inside at once

void episode_item_free(struct episode_item *it)
{
    for (int32_t i = 0; it->sample && i < it->n_sample; i++) {
        struct episode *s = &it->sample[i];
        for (int64_t k = 0; k < s->n_turn; k++)
            free(s->text[k]);
        free(s->text);
        free(s->token);
        free(s->logp);
        free(s->entropy);
        free(s->newer);
        free(s->mask);
        session_free(s->session);
    }
    free(it->sample);
    free(it->row);
    json_decref(it->tools);
    token_list_release(&it->prompt);
    free(it);
}

struct episodes *episodes_new(const struct engine *e, struct error *err)
{
    struct episodes *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for episodes");
        return NULL;
    }
    s->harness = run_config_harness(&e->config) != NULL;
    s->session = (struct session_config){ .text = { .encoder = e->prompts.maker.encoder,
                                                    .tokenizer = e->prompts.tokenizer,
                                                    .template = e->prompts.template,
                                                    .n_id = model_n_live(e->model) },
                                          .reply = { .model = e->config.name, .tokenizer = e->prompts.tokenizer },
                                          .max_turn_tok = e->config.max_turn_tokens };
    return s;
}

void episodes_clear(struct episodes *s)
{
    for (struct episode_item *it; s && (it = s->item);) {
        s->item = it->next;
        episode_item_free(it);
    }
    for (int64_t i = 0; s && i < s->n_finished; i++)
        group_free(s->finished[i]);
    if (s)
        s->n_item = s->n_finished = 0;
}

void episodes_free(struct episodes *s)
{
    episodes_clear(s);
    if (s)
        free(s->finished);
    free(s);
}

static struct episode_item *item_find(const struct episodes *s, int64_t serial)
{
    struct episode_item *it = s->item;
    while (it && it->serial != serial)
        it = it->next;
    return it;
}

bool episodes_watch(void *ctx, const struct drawn *d)
{
    struct episode_item *it = item_find(ctx, d->prompt_row >> SAMPLE_BITS);
    int64_t i = (d->prompt_row & ((1 << SAMPLE_BITS) - 1)) + d->sample;
    if (!it)
        return true;    // dropped: nobody wants its tokens
    struct episode *s = &it->sample[i];
    if (s->session) {
        BUG_IF(s->state != EPISODE_DRAWS, "a token for session %" PRId64 " of item %" PRId64, i, it->item);
        if (it->version < 0)
            it->version = d->version;
        s->n_tok++;
        s->version = d->version;
        s->ended = session_token(s->session, d, it->version);
        return s->ended;
    }
    BUG_IF(s->state != EPISODE_DRAWS || s->n_tok >= it->sampling.max_new_tok, "a token for sample %" PRId64 " of item %" PRId64, i,
           it->item);
    if (it->version < 0)
        it->version = d->version;
    s->token[s->n_tok] = d->id;
    s->logp[s->n_tok] = d->logp;
    s->entropy[s->n_tok] = d->entropy;
    s->newer[s->n_tok] = (int32_t)(d->version - it->version);
    s->mask[s->n_tok++] = 1;
    s->ended = d->is_last;
    s->is_stop = d->is_stop;
    return false;
}

/* ---- questions to the environment ---- */

/* Ask how sample i goes on; sample 0 without a turn: how the item begins. */
static bool turn_ask(struct engine *e, const struct episode_item *it, int32_t i, struct error *err)
{
    const struct episode *s = &it->sample[i];
    struct report *r = calloc(1, sizeof *r);
    struct turn_job *job = turn_job_new(s->n_turn);
    bool ok = r && job && (job->row = strdup(it->row));
    for (int64_t k = 0; ok && k < s->n_turn; k++)
        ok = (job->text[k] = strdup(s->text[k]));
    if (!ok) {
        free(r);
        turn_job_free(job);
        return error_set(err, ERR_NO_MEMORY, "no memory for a turn of item %" PRId64, it->item);
    }
    job->turn = (struct turn){ .item = it->item,
                               .sample = i,
                               .seed = it->seed,
                               .row = job->row,
                               .n_text = s->n_turn,
                               .text = (const char *const *)job->text,
                               .serial = it->serial,
                               .oldest = e->episodes->item ? e->episodes->item->serial : it->serial };
    r->kind = REPORT_TURN;
    r->serial = it->serial;
    r->turn = job;
    engine_report(e, r);
    return true;
}

/* A number for the environment from 0 to 2^53 - 1, which every language's numbers hold exactly. Knuth's multiplier spreads items that
 * follow each other. */
static int64_t environment_seed(int64_t seed, int64_t item)
{
    uint64_t x = ((uint64_t)seed + 1) * 6364136223846793005u + (uint64_t)item * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 6364136223846793005u;
    return (int64_t)(x >> 11);
}

/* A session for each sample. */
static bool sessions_new(struct episode_item *it)
{
    it->sample = calloc((size_t)it->n_sample, sizeof *it->sample);
    bool ok = it->sample != NULL;
    for (int32_t i = 0; ok && i < it->n_sample; i++) {
        it->sample[i].acc = NAN;
        ok = (it->sample[i].session = session_new()) != NULL;
    }
    return ok;
}

static bool samples_new(struct episode_item *it)
{
    size_t n = (size_t)it->sampling.max_new_tok;
    it->sample = calloc((size_t)it->n_sample, sizeof *it->sample);
    bool ok = it->sample != NULL;
    for (int32_t i = 0; ok && i < it->n_sample; i++) {
        struct episode *s = &it->sample[i];
        s->acc = NAN;
        s->token = malloc(n * sizeof *s->token);
        s->logp = malloc(n * sizeof *s->logp);
        s->entropy = malloc(n * sizeof *s->entropy);
        s->newer = malloc(n * sizeof *s->newer);
        s->mask = malloc(n);
        ok = s->token && s->logp && s->entropy && s->newer && s->mask;
    }
    return ok;
}

bool episodes_submit(struct engine *e, const struct prompt_order *o, const struct sampling *s, struct error *err)
{
    bool ok = false;
    struct episodes *all = e->episodes;
    if (all->n_item >= ITEM_MAX)
        return error_set(err, ERR_FULL, "%d items are being sampled, the most", ITEM_MAX);
    struct episode_item *it = calloc(1, sizeof *it);
    json_t *row = dataset_row(o->data, o->data_row, err);
    TRY(it || error_set(err, ERR_NO_MEMORY, "no memory for an item"));
    TRY(row);
    *it = (struct episode_item){ .serial = all->next_serial++,
                                 .item = o->item,
                                 .prompt_row = o->prompt_row,
                                 .rollout_step = o->rollout_step,
                                 .sampling = *s,
                                 .seed = environment_seed(e->config.seed, o->item),
                                 .version = -1,
                                 .start_ns = clock_ns(),
                                 .n_sample = (int32_t)o->n_sample };
    TRY(o->level < 0 || json_object_set_new(row, "level", json_integer(o->level)) == 0
        || error_set(err, ERR_NO_MEMORY, "no memory for an item"));
    TRY(((it->row = json_text_dump(row, JSON_COMPACT)) && (all->harness ? sessions_new(it) : samples_new(it)))
        || error_set(err, ERR_NO_MEMORY, "no memory for an item"));
    it->state = all->harness ? EPISODE_DRAWS : EPISODE_ASKED;
    for (int32_t i = 0; i < (all->harness ? it->n_sample : 1); i++)
        TRY(turn_ask(e, it, i, err));
    all->n_item++;
    struct episode_item **at = &all->item;
    while (*at)
        at = &(*at)->next;
    *at = it;
    ok = true;
out:
    json_decref(row);
    if (!ok && it)
        episode_item_free(it);
    return ok;
}

/* ---- answers ---- */

static void episode_over(struct episode_item *it, struct episode *s, enum finish_reason finish)
{
    s->state = EPISODE_OVER;
    s->finish = finish;
    it->n_over++;
}

/* The sample is left out, because of why. */
static void episode_fail(struct episode_item *it, struct episode *s, enum score_state score, const char *why)
{
    s->score = score == SCORE_OK || score == SCORE_NONE ? SCORE_ERROR : score;
    snprintf(s->reason, sizeof s->reason, "%s", why);
    episode_over(it, s, FINISH_STOP);
}

static void item_fail(struct episode_item *it, enum score_state score, const char *why)
{
    for (int32_t i = 0; i < it->n_sample; i++)
        episode_fail(it, &it->sample[i], score, why);
}

/* The row that the item's prompt is made from: what the environment begins with, else the dataset's. A new reference. */
static json_t *begin_row(const struct engine *e, const struct episode_item *it, const json_t *answer)
{
    json_t *row = json_str_read(it->row, JSON_ALLOW_NUL, NULL), *observation = json_object_get(answer, "observation");
    json_t *messages = json_object_get(answer, "messages"), *tools = json_object_get(answer, "tools");
    bool chat = json_object_get(row, "messages") || (e->prompts.template && !json_object_get(row, "prompt"));
    if (row && json_is_string(observation) && chat)
        json_object_set_new(row, "messages", json_pack("[{s:s, s:O}]", "role", "user", "content", observation));
    else if (row && json_is_string(observation))
        json_object_set(row, "prompt", observation);
    if (row && messages)
        json_object_set(row, "messages", messages);
    if (row && tools)
        json_object_set(row, "tools", tools);
    return row;
}

/* The environment has said how the item begins: make its prompt. */
static void item_begin(struct engine *e, struct episode_item *it, const struct turn_answer *a)
{
    struct error err = { 0 };
    bool dropped = false, answered;
    if (a->state != SCORE_OK) {
        item_fail(it, a->state, a->reason);
        return;
    }
    json_t *answer = json_str_read(a->json, JSON_ALLOW_NUL, NULL), *row = begin_row(e, it, answer);
    it->chat = json_object_get(row, "messages") != NULL;
    if (!row || !conversation_settle(row, &answered, &err) || !prompt_make(&e->prompts.maker, row, &it->prompt, &dropped, &err))
        item_fail(it, SCORE_ERROR, row ? err.text : "environment: no memory");
    else if (dropped)
        item_fail(it, SCORE_ERROR, "environment: its prompt is too long");
    else
        it->state = EPISODE_READY;
    it->tools = json_incref(json_object_get(row, "tools"));
    json_decref(row);
    json_decref(answer);
}

/* What the environment said goes after the turn. False: it does not leave room for another turn, or err says why not. */
static bool said_add(struct engine *e, const struct episode_item *it, struct episode *s, const json_t *answer, struct error *err)
{
    const json_t *said = json_object_get(answer, "observation");
    const char *role = json_string_value(json_object_get(answer, "role"));
    struct token_list ids = { 0 };
    size_t n_last = 0;
    int32_t end = s->token[s->n_tok - 1];
    const void *last = tokenizer_is_eos(e->prompts.tokenizer, end) ? tokenizer_bytes(e->prompts.tokenizer, end, &n_last) : NULL;
    bool ok = prompt_turn_add(&e->prompts.maker, it->chat, it->tools, role ? role : "user",
                              json_is_string(said) ? json_string_value(said) : "", json_string_length(said), last, n_last, &ids, err);
    ok = ok && s->n_tok + ids.n < it->sampling.max_new_tok;
    for (int64_t k = 0; ok && k < ids.n; k++) {
        s->token[s->n_tok] = ids.id[k];
        s->logp[s->n_tok] = s->entropy[s->n_tok] = 0;
        s->newer[s->n_tok] = 0;
        s->mask[s->n_tok++] = 0;
    }
    s->turn_at = s->n_tok;
    token_list_release(&ids);
    return ok;
}

static void reward_take(struct episode *s, const json_t *answer)
{
    const json_t *reward = json_object_get(answer, "reward"), *acc = json_object_get(answer, "ans_acc");
    double number;
    if (json_double_get(reward, &number)) {
        s->last = number;
        s->sum += s->last;
    }
    if (json_is_number(acc) || json_is_boolean(acc))
        s->acc = json_is_true(acc) || json_number_value(acc) > 0;
}

static bool text_add(struct episode *s, char *text)
{
    char **more = text ? realloc(s->text, (size_t)(s->n_turn + 1) * sizeof *more) : NULL;
    if (!more) {
        free(text);
        return false;
    }
    s->text = more;
    s->text[s->n_turn++] = text;
    return true;
}

/* Forget what the session's program has asked so far. */
static void session_restart(struct episode *s)
{
    session_clear(s->session);
    for (int64_t k = 0; k < s->n_turn; k++)
        free(s->text[k]);
    s->n_turn = s->n_tok = 0;
}

/* A session's program has asked for a reply: make ready to draw it, or give one without. */
static bool request_take(struct engine *e, struct episode_item *it, int32_t i, const json_t *request, struct error *err)
{
    struct episode *s = &it->sample[i];
    struct session_config c = e->episodes->session;
    char id[48], *text = NULL;
    c.text.max_seq_tok = e->config.max_prompt_tokens + it->sampling.max_new_tok;
    snprintf(id, sizeof id, "session-%" PRId64 ".%d-%" PRId64, it->item, i, s->n_turn);
    if (!session_ask(s->session, &c, request, &it->sampling, id, &s->sampling, &text, err))
        return false;
    s->state = text ? EPISODE_ASKED : EPISODE_READY;
    return !text || (text_add(s, text) ? turn_ask(e, it, i, err) : error_set(err, ERR_NO_MEMORY, "no memory for a reply"));
}

/* The harness has answered for a sample: a request of its program, its end, or that it starts over. */
static void session_take(struct engine *e, struct episode_item *it, int32_t i, const struct turn_answer *a)
{
    struct error err = { 0 };
    struct episode *s = &it->sample[i];
    if (s->state != EPISODE_ASKED)
        return;    // it was asked twice
    if (a->state != SCORE_OK) {
        episode_fail(it, s, a->state, a->reason);
        return;
    }
    json_t *answer = json_str_read(a->json, JSON_ALLOW_NUL, NULL);
    const json_t *request = json_object_get(answer, "request");
    bool ok = true;
    if (json_is_true(json_object_get(answer, "restart"))) {
        session_restart(s);
        ok = turn_ask(e, it, i, &err);
    } else if (request) {
        ok = request_take(e, it, i, request, &err);
    } else if (session_n_path(s->session) == 0) {
        episode_fail(it, s, SCORE_ERROR, "harness: it asked for nothing");
    } else {
        reward_take(s, answer);
        episode_over(it, s, FINISH_STOP);
    }
    if (!ok)
        episode_fail(it, s, SCORE_ERROR, err.text);
    json_decref(answer);
}

/* The environment has answered a sample's turn. */
static void turn_take(struct engine *e, struct episode_item *it, struct episode *s, const struct turn_answer *a)
{
    struct error err = { 0 };
    if (a->state != SCORE_OK) {
        episode_fail(it, s, a->state, a->reason);
        return;
    }
    json_t *answer = json_str_read(a->json, JSON_ALLOW_NUL, NULL);
    reward_take(s, answer);
    if (json_is_true(json_object_get(answer, "done")) || s->n_turn >= e->config.max_turns)
        episode_over(it, s, FINISH_STOP);
    else if (said_add(e, it, s, answer, &err))
        s->state = EPISODE_READY;
    else if (err.code)
        episode_fail(it, s, SCORE_ERROR, err.text);
    else
        episode_over(it, s, FINISH_LENGTH);
    json_decref(answer);
}

void episode_answers_take(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct report *r = e->turned_first;
    e->turned_first = NULL;
    e->turned_last = &e->turned_first;
    pthread_mutex_unlock(&e->lock);
    for (struct report *next; r; r = next) {
        struct episode_item *it = item_find(e->episodes, r->serial);
        next = r->next;
        if (it && it->state == EPISODE_ASKED)
            item_begin(e, it, &r->turn->answer);
        else if (it && e->episodes->harness)
            session_take(e, it, (int32_t)r->turn->turn.sample, &r->turn->answer);
        else if (it)
            turn_take(e, it, &it->sample[r->turn->turn.sample], &r->turn->answer);
        report_free(r);
        engine_progress(e, 1);
    }
}

/* ---- the generator ---- */

/* Give n samples of the item from sample first on to the generator, to go on where they are; they are alike so far. */
static bool samples_submit(struct engine *e, struct episode_item *it, int32_t first, int32_t n, struct error *err)
{
    struct episode *s = &it->sample[first];
    struct token_list ids = { 0 };
    struct generator_item g = { .item = it->item,
                                .prompt_row = it->serial << SAMPLE_BITS | first,
                                .rollout_step = it->rollout_step,
                                .n_sample = n,
                                .first_sample = first,
                                .sampling = it->sampling };
    uint64_t *seed = calloc((size_t)n, sizeof *seed);
    bool ok = seed && token_list_add(&ids, it->prompt.id, it->prompt.n) && token_list_add(&ids, s->token, s->n_tok);
    for (int32_t i = 0; ok && i < n; i++)
        seed[i] = (uint64_t)e->config.seed;
    g.prompt = ids.id;
    g.n_prompt = ids.n;
    g.seed = seed;
    g.sampling.max_new_tok = it->sampling.max_new_tok - s->n_tok;
    if (e->config.max_turn_tokens > 0)
        g.sampling.max_new_tok = MIN(g.sampling.max_new_tok, e->config.max_turn_tokens);
    g.sampling.min_new_tok = MIN(MAX(it->sampling.min_new_tok - s->n_tok, (int64_t)0), g.sampling.max_new_tok);
    if (ok)
        ok = generator_submit(e->generator, &g, err);
    else
        error_set(err, ERR_NO_MEMORY, "no memory for a turn of item %" PRId64, it->item);
    for (int32_t i = 0; ok && i < n; i++) {
        it->sample[first + i].state = EPISODE_DRAWS;
        it->sample[first + i].ended = false;
    }
    token_list_release(&ids);
    free(seed);
    return ok;
}

/* Give a session's reply to the generator. The branches of a session draw with noise of their own. */
static bool session_submit(struct engine *e, struct episode_item *it, int32_t i, struct error *err)
{
    struct episode *s = &it->sample[i];
    uint64_t seed = (uint64_t)e->config.seed;
    struct generator_item g = { .item = it->item,
                                .prompt_row = it->serial << SAMPLE_BITS | i,
                                .rollout_step = it->rollout_step,
                                .n_sample = 1,
                                .first_sample = i + it->n_sample * session_branch(s->session),
                                .seed = &seed,
                                .sampling = s->sampling };
    g.prompt = session_prompt(s->session, &g.n_prompt);
    if (!generator_submit(e->generator, &g, err))
        return false;
    s->state = EPISODE_DRAWS;
    s->ended = false;
    return true;
}

bool ready_submit(struct engine *e, struct error *err)
{
    for (struct episode_item *it = e->episodes->item; it; it = it->next) {
        struct error why = { 0 };
        bool ok = true;
        if (it->state == EPISODE_READY) {
            if ((ok = samples_submit(e, it, 0, it->n_sample, &why)))
                it->state = EPISODE_DRAWS;
        } else {
            for (int32_t i = 0; ok && i < it->n_sample; i++)
                if (it->sample[i].state == EPISODE_READY)
                    ok = e->episodes->harness ? session_submit(e, it, i, &why) : samples_submit(e, it, i, 1, &why);
        }
        if (!ok && why.code == ERR_FULL)
            return true;
        if (!ok) {
            *err = why;
            return false;
        }
    }
    return true;
}

bool turn_end(struct engine *e, struct episode_item *it, int32_t i, struct error *err)
{
    struct episode *s = &it->sample[i];
    struct buf text = BUF_INIT;
    s->ended = false;
    if (s->session) {
        s->state = EPISODE_ASKED;
        return text_add(s, session_reply(s->session, &e->episodes->session, s->version))
                   ? turn_ask(e, it, i, err)
                   : error_set(err, ERR_NO_MEMORY, "no memory for a reply of item %" PRId64, it->item);
    }
    if (!s->is_stop && s->n_tok >= it->sampling.max_new_tok) {
        episode_over(it, s, FINISH_LENGTH);
        return true;
    }
    bool ok = completion_text(e->prompts.tokenizer, s->token + s->turn_at, s->n_tok - s->turn_at, &text)
              && text_add(s, strdup(buf_text(&text)));
    buf_release(&text);
    if (!ok)
        return error_set(err, ERR_NO_MEMORY, "no memory for a turn of item %" PRId64, it->item);
    s->state = EPISODE_ASKED;
    return turn_ask(e, it, i, err);
}
