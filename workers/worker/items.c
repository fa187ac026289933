#include "workers/worker/items.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/completion.h"
#include "workers/engine/sampler/external.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/worker/episodes.h"
#include "workers/worker/gap.h"
#include "workers/worker/guests.h"
#include "workers/worker/rubrics.h"
#include "workers/worker/sampling.h"

/* ---- shared with evaluations ---- */

static bool full_length(const struct run_config *c)
{
    return c->ignore_eos || c->enable_profiling;
}

void sampling_make(const struct engine *e, const struct run_config *c, double temperature, struct sampling *s)
{
    const char *stop = reward_stop_string(c->reward_type);
    int n_eos;
    const int32_t *eos = tokenizer_eos(e->prompts.tokenizer, &n_eos);
    *s = SAMPLING_DEFAULT;
    s->temperature = (float)temperature;
    s->top_p = (float)c->top_p;
    s->top_k = (int32_t)c->top_k;
    s->min_p = (float)c->min_p;
    s->max_new_tok = c->max_new_tokens;
    for (int i = 0; i < n_eos && i < SAMPLING_STOP_TOKENS_MAX; i++)
        s->stop_token[s->n_stop_token++] = eos[i];
    if (stop)
        snprintf(s->stop_string, sizeof s->stop_string, "%s", stop);
}

bool prompt_submit(struct engine *e, const struct prompt_order *o, const struct sampling *s, bool *dropped, struct error *err)
{
    if (e->episodes) {
        *dropped = false;
        return episodes_submit(e, o, s, err);
    }
    bool ok = false;
    struct token_list ids = { 0 };
    uint64_t *seed = calloc((size_t)o->n_sample, sizeof *seed);
    json_t *row = dataset_row(o->data, o->data_row, err);
    *dropped = false;
    if (!seed) {
        error_set(err, ERR_NO_MEMORY, "no memory for an item");
        goto out;
    }
    TRY(row && prompt_make(&e->prompts.maker, row, &ids, dropped, err));
    if (*dropped) {
        ok = true;
        goto out;
    }
    for (int64_t i = 0; i < o->n_sample; i++)
        seed[i] = (uint64_t)e->config.seed;
    struct generator_item it = { .item = o->item,
                                 .prompt_row = o->prompt_row,
                                 .rollout_step = o->rollout_step,
                                 .prompt = ids.id,
                                 .n_prompt = ids.n,
                                 .n_sample = (int32_t)o->n_sample,
                                 .seed = seed,
                                 .sampling = *s };
    ok = e->external ? external_submit(e->external, &it, err) : generator_submit(e->generator, &it, err);
out:
    json_decref(row);
    token_list_release(&ids);
    free(seed);
    return ok;
}

/* The text of sample i without its end token and without bytes of 0, into text (emptied first), and in r->piece how many bytes of it each
 * token gave. A token inside a character gives nothing: the one that completes it has all its bytes. */
static bool sample_text(struct report *r, int32_t i, const struct tokenizer *tokenizer, struct buf *text)
{
    const struct sample *s = &r->group->sample[i];
    struct decoder d = { .tokenizer = tokenizer, .skip_special = true };
    const int32_t *id = r->group->token + s->first_tok;
    int64_t n = tokenizer_n_text(tokenizer, id, s->n_tok);
    uint16_t *piece = r->piece + s->first_tok;
    bool ok = true;
    buf_clear(text);
    for (int64_t t = 0; ok && t < n; t++) {
        size_t before = text->len;
        ok = decoder_push(&d, id[t], text) && buf_nul_replace(text, before);
        piece[t] = (uint16_t)MIN(text->len - before, (size_t)UINT16_MAX);
    }
    size_t before = text->len;
    ok = ok && decoder_end(&d, text) && buf_nul_replace(text, before);
    if (n > 0)
        piece[n - 1] = (uint16_t)MIN(piece[n - 1] + text->len - before, (size_t)UINT16_MAX);
    decoder_release(&d);
    return ok;
}

/* The texts of r's group: the prompt, and each completion without its end token, all of it and its last turn. False: no memory. */
static bool texts_make(struct report *r, const struct tokenizer *tokenizer)
{
    const struct group *g = r->group;
    struct buf text = BUF_INIT;
    r->text = calloc((size_t)g->n_sample, sizeof *r->text);
    r->last = calloc((size_t)g->n_sample, sizeof *r->last);
    r->piece = calloc((size_t)MAX(g->n_tok, (int64_t)1), sizeof *r->piece);
    bool ok = r->text && r->last && r->piece && tokenizer_decode(tokenizer, g->prompt, g->n_prompt, false, &text)
              && buf_nul_replace(&text, 0) && (r->prompt_text = strdup(buf_text(&text)));
    for (int32_t i = 0; ok && i < g->n_sample; i++) {
        const struct sample *s = &g->sample[i];
        const int32_t *id = g->token + s->first_tok;
        int64_t last = s->n_tok;    // where the last turn begins
        while (last > 0 && g->mask[s->first_tok + last - 1])
            last--;
        ok = sample_text(r, i, tokenizer, &text) && (r->text[i] = strdup(buf_text(&text)));
        if (ok && last == 0) {
            r->last[i] = r->text[i];
        } else if (ok) {
            buf_clear(&text);
            ok = completion_text(tokenizer, id + last, s->n_tok - last, &text) && (r->last[i] = strdup(buf_text(&text)));
        }
    }
    buf_release(&text);
    return ok;
}

struct report *group_report(struct engine *e, struct group *g, int64_t made, struct dataset *data, int64_t data_row, struct error *err)
{
    struct report *r = calloc(1, sizeof *r);
    if (!r) {
        group_free(g);
        error_set(err, ERR_NO_MEMORY, "no memory for a group");
        return NULL;
    }
    r->kind = REPORT_GROUP;
    r->group = g;
    r->made = made;
    json_t *row = dataset_row(data, data_row, err);
    const json_t *answer = json_object_get(row, "gt_answer");
    if (json_is_string(answer))    // else what the verifier says it is
        utf8_copy(g->gold, sizeof g->gold, json_string_value(answer), json_string_length(answer));
    bool ok = row
              && (((r->row = json_text_dump(row, JSON_COMPACT)) && texts_make(r, e->prompts.tokenizer))
                  || error_set(err, ERR_NO_MEMORY, "no memory for the text of a group"));
    json_decref(row);
    if (!ok) {
        report_free(r);
        return NULL;
    }
    return r;
}

void items_look(struct engine *e)
{
    struct generator_stats s = { 0 };
    int64_t now = clock_ms();
    if (e->external) {
        struct external_stats x;
        external_stats(e->external, &x);
        s.n_decode_tok = x.n_tok;
        s.n_running_seq = x.n_running;
    } else {
        generator_stats(e->generator, &s);
    }
    e->most_running = s.n_running_seq > 0 ? MAX(e->most_running, s.n_running_seq) : 0;
    gap_stats_add(e, &s);
    bool gap = gap_is_open(e, &s);
    pthread_mutex_lock(&e->lock);
    e->look.gap = gap && !e->task_first;    // items that are about to come fill the batch
    e->look.progress += 1;
    e->work.n_put_back += s.n_put_back - e->look.n_put_back;
    if (s.n_decode < e->seen.n_decode || s.n_run_tok < e->seen.n_run_tok)    // another generator
        e->seen = (struct generator_stats){ 0 };
    e->work.n_decode += s.n_decode - e->seen.n_decode;
    e->work.n_kv_tok += s.n_kv_tok - e->seen.n_kv_tok;
    e->work.n_run_tok += s.n_run_tok - e->seen.n_run_tok;
    e->work.n_seen_tok += s.n_seen_tok - e->seen.n_seen_tok;
    e->work.n_draft += s.n_draft - e->seen.n_draft;
    e->work.n_accepted += s.n_accepted - e->seen.n_accepted;
    e->seen = s;
    e->look.n_running = s.n_running_seq;
    e->look.n_waiting = s.n_waiting_seq;
    e->look.n_page = s.n_page;
    e->look.n_page_used = s.n_page - s.n_free_page;
    e->look.n_put_back = s.n_put_back;
    if (now - e->mark.ms >= 1000) {
        if (e->mark.ms)
            e->look.tok_per_s = (double)(s.n_decode_tok - e->mark.n_tok) * 1000 / (double)(now - e->mark.ms);
        e->mark = (struct sampler_mark){ .ms = now, .n_tok = s.n_decode_tok };
    }
    pthread_mutex_unlock(&e->lock);
}

void items_drop(struct engine *e)
{
    guests_lift(e);
    if (e->external)
        external_clear(e->external);
    if (e->generator)
        generator_clear(e->generator);
    gap_clear(e);
    episodes_clear(e->episodes);
    rubrics_clear(e);
}

/* ---- the tasks ---- */

bool items_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    (void)r;
    struct sampling s;
    bool dropped;
    pthread_mutex_lock(&e->lock);
    e->look.items_max = t->config.inference_microbatch_size;
    pthread_mutex_unlock(&e->lock);
    sampling_make(e, &t->config, run_config_temperature(&t->config, t->rollout_step), &s);
    if (full_length(&t->config)) {    // of rollouts alone: an evaluation asks what the model can do
        s.ignore_eos = true;
        s.stop_string[0] = 0;
    }
    s.max_new_tok = run_config_length(&t->config, t->rollout_step);
    s.min_new_tok = MIN(t->config.min_new_tokens, s.max_new_tok);
    if (t->version >= 0 && t->version != e->version)
        return error_set(err, ERR_INTERNAL, "items want version %" PRId64 ", the sampler has %" PRId64, t->version, e->version);
    if (e->external && external_idle(e->external))
        e->drawn_ns = clock_ns();
    for (int64_t i = 0; i < t->n_item; i++) {
        int64_t row = t->item[i].row;
        if (row < 0 || row >= e->prompts.n_row)
            return error_set(err, ERR_DATA, "prompt %" PRId64 " does not exist", row);
        struct prompt_order o = { .data = e->prompts.data,
                                  .data_row = e->prompts.usable[row],
                                  .prompt_row = row,
                                  .item = t->item[i].item,
                                  .rollout_step = t->rollout_step,
                                  .n_sample = t->config.num_generations,
                                  .level = t->level };
        if (!prompt_submit(e, &o, &s, &dropped, err) || !rubrics_note(e, &t->item[i], err))
            return false;
    }
    task_free(e->items_task);
    e->items_task = t;
    return true;
}

/* An item has left the sampler. */
static void item_left(struct engine *e, bool ending)
{
    pthread_mutex_lock(&e->lock);
    if (ending)
        e->look.n_item_ending--;
    else
        e->look.n_item--;
    pthread_mutex_unlock(&e->lock);
}

/* The incarnation that made the weights of a group or an item. */
static int64_t made_of(const struct engine *e, bool ending)
{
    return ending ? e->ending.made : e->made;
}

/* An item was stopped: say so. */
static bool stopped_report(struct engine *e, const struct stopped_item *one, bool ending, struct error *err)
{
    struct report *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(err, ERR_NO_MEMORY, "no memory for the report of item %" PRId64, one->item);
    rubrics_drop(e, one->item);
    *r = (struct report){ .kind = REPORT_STOPPED, .made = made_of(e, ending), .stopped = *one };
    engine_report(e, r);
    item_left(e, ending);
    return true;
}

/* Stop items that an operator has dropped. */
static bool drops_mind(struct engine *e, struct error *err)
{
    bool ending;
    struct stopped_item one;
    int64_t item[DROPPED_TOLD_MAX];
    pthread_mutex_lock(&e->lock);
    int n = e->n_dropped;
    memcpy(item, e->dropped, sizeof item);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < n; i++)
        if (sampler_drop(e, item[i], &one, &ending) && !stopped_report(e, &one, ending, err))
            return false;
    return true;
}

/* Stop items that cannot count any more. */
static bool tails_mind(struct engine *e, struct error *err)
{
    bool ending;
    struct stopped_item one;
    struct tail tail[TAIL_MAX];
    pthread_mutex_lock(&e->lock);
    int n = e->n_tail;
    memcpy(tail, e->tail, sizeof tail);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < n; i++)
        while (sampler_stop(e, tail[i].rollout_step, tail[i].n_tok, &one, &ending))
            if (!stopped_report(e, &one, ending, err))
                return false;
    return true;
}

/* Account for s seconds of generating, before items_look has seen what runs after them. */
static void generated(struct engine *e, double s)
{
    int64_t n = e->look.n_running;    // written by this thread only
    e->work.generate_s += s;
    e->work.tail_s += 2 * n < MAX(e->most_running, e->ending.most_running) ? s : 0;
    e->work.gap_s += e->ending.n_running > 0 && n > e->ending.n_running ? s : 0;
}

bool items_step(struct engine *e, struct error *err)
{
    struct group *g;
    bool ending;
    int64_t before = e->external ? e->drawn_ns : clock_ns();    // an external engine has drawn since this was here last
    engine_phase(e, "generating");
    if (!sampler_step(e, err))
        return false;
    e->drawn_ns = clock_ns();
    generated(e, (double)(e->drawn_ns - before) / 1e9);
    items_look(e);
    while ((g = sampler_poll(e, &ending))) {
        for (int32_t i = 0; i < g->n_sample; i++)
            e->work.n_tok += sample_n_own(g, i);
        // full length was asked for: counted as cut off, they would have no reward and training nothing to do
        for (int32_t i = 0; full_length(&e->config) && i < g->n_sample; i++)
            g->sample[i].finish = FINISH_STOP;
        struct report *r = group_report(e, g, made_of(e, ending), e->prompts.data, e->prompts.usable[g->prompt_row], err);
        if (!r || !rubrics_give(e, r, err)) {
            report_free(r);
            return false;
        }
        if (!e->trains) {    // a trainer says it with its step
            sampled_make(e, &r->sampled);
            e->work = (struct sampler_work){ 0 };
        }
        engine_report(e, r);
        item_left(e, ending);
    }
    bool ok = drops_mind(e, err) && tails_mind(e, err);
    gap_close_up(e);
    return ok;
}

bool cancel_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    (void)r, (void)err;
    items_drop(e);
    task_free(t);
    return true;
}
