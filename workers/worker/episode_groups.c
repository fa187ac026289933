/* episode_groups.c - the group that comes of an item with an environment, when its samples are over */
#include "workers/worker/episodes_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "workers/engine/reward/environment_pool.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/worker/items.h"
#include "workers/worker/session.h"

/* ---- groups ---- */

/* What a group says of its item. */
static void group_item_set(const struct engine *e, const struct episode_item *it, struct group *g)
{
    g->has_entropy = e->config.rollout_entropy;
    g->item = it->item;
    g->prompt_row = it->prompt_row;
    g->rollout_step = it->rollout_step;
    g->weight_version = it->version >= 0 ? it->version : e->version;
    g->temperature = it->sampling.temperature;
    g->top_p = it->sampling.top_p;
    g->top_k = it->sampling.top_k;
    g->max_new_tok = it->sampling.max_new_tok;
    g->gen_s = (double)(clock_ns() - it->start_ns) * 1e-9;
}

/* A sample of n_tok tokens from first_tok on, with what its episode has earned. */
static struct sample sample_make(const struct engine *e, const struct episode *s, int64_t first_tok, int64_t n_tok)
{
    double reward = strcmp(e->config.environment_reward, "last") == 0 ? s->last : s->sum;
    struct sample out = { .first_tok = first_tok,
                          .n_tok = n_tok,
                          .seed = (uint64_t)e->config.seed,
                          .finish = s->finish,
                          .score = s->score,
                          .reward = s->score == SCORE_NONE ? reward : 0 };
    out.ans_acc = s->score != SCORE_NONE ? 0 : isnan(s->acc) ? reward > 0 : s->acc;
    snprintf(out.reason, sizeof out.reason, "%s", s->reason);
    for (size_t k = 0; k < GROUP_PARTS_MAX; k++)
        out.part[k] = NAN;
    return out;
}

/* The paths of a session that are samples: all of them; of an evaluation's, which counts sessions, the last. */
static int first_path(const struct episode_item *it, const struct episode *s)
{
    int n = session_n_path(s->session);
    return it->item >= EVAL_ITEM_BASE && n > 0 ? n - 1 : 0;
}

/* The first path of all; NULL: no session has one. */
static const struct session_path *path_of_all(const struct episode_item *it)
{
    for (int32_t i = 0; i < it->n_sample; i++)
        if (session_n_path(it->sample[i].session) > 0)
            return session_path(it->sample[i].session, first_path(it, &it->sample[i]));
    return NULL;
}

/* Path k of the session, when it can be a sample: a group's samples share a beginning, of one token at least. NULL: it cannot, or there is
 * none. */
static const struct session_path *path_of(const struct episode_item *it, const struct episode *s, int k)
{
    const struct session_path *p = k < session_n_path(s->session) ? session_path(s->session, k) : NULL;
    return p && p->token[0] == path_of_all(it)->token[0] ? p : NULL;
}

/* How many tokens all paths begin with, before any was drawn. */
static int64_t prompt_shared(const struct episode_item *it)
{
    const struct session_path *one = path_of_all(it);
    int64_t n = one ? one->n_first : 0;
    for (int32_t i = 0; i < it->n_sample; i++)
        for (int k = first_path(it, &it->sample[i]); k < session_n_path(it->sample[i].session); k++) {
            const struct session_path *p = path_of(it, &it->sample[i], k);
            int64_t same = 0;
            if (!p)
                continue;
            n = MIN(n, p->n_first);
            while (same < n && p->token[same] == one->token[same])
                same++;
            n = same;
        }
    return n;
}

/* The group of an item's sessions: a sample for each path. A session without one, and a path that begins with another token than the others,
 * are samples without tokens that are left out. */
static struct group *sessions_group_make(const struct engine *e, const struct episode_item *it, struct error *err)
{
    int64_t n_tok = 0, at = 0, n_prompt = prompt_shared(it);
    int32_t n_sample = 0, row = 0;
    for (int32_t i = 0; i < it->n_sample; i++) {
        const struct episode *s = &it->sample[i];
        int n = session_n_path(s->session), first = first_path(it, s);
        n_sample += MAX(n - first, 1);
        for (int k = first; k < n; k++)
            n_tok += path_of(it, s, k) ? path_of(it, s, k)->n - n_prompt : 0;
    }
    struct group *g = group_new(n_prompt, n_sample, n_tok, err);
    if (!g)
        return NULL;
    group_item_set(e, it, g);
    for (int32_t i = 0; i < it->n_sample; i++) {
        const struct episode *s = &it->sample[i];
        int n = session_n_path(s->session), first = first_path(it, s);
        for (int k = first; k < MAX(n, first + 1); k++) {
            const struct session_path *p = path_of(it, s, k);
            size_t own = p ? (size_t)(p->n - n_prompt) : 0;
            struct sample *sample = &g->sample[row++];
            *sample = sample_make(e, s, at, (int64_t)own);
            sample->again = k > first;
            if (!p && sample->score == SCORE_NONE) {
                sample->score = SCORE_LEFT_OUT;
                snprintf(sample->reason, sizeof sample->reason, "harness: begins with another token");
            }
            if (!p)
                continue;
            memcpy(g->prompt, p->token, (size_t)n_prompt * sizeof *g->prompt);
            memcpy(g->token + at, p->token + n_prompt, own * sizeof *g->token);
            memcpy(g->logp + at, p->logp + n_prompt, own * sizeof *g->logp);
            memcpy(g->entropy + at, p->entropy + n_prompt, own * sizeof *g->entropy);
            memcpy(g->newer + at, p->newer + n_prompt, own * sizeof *g->newer);
            memcpy(g->mask + at, p->mask + n_prompt, own);
            at += (int64_t)own;
        }
    }
    return g;
}

static struct group *group_make(const struct engine *e, const struct episode_item *it, struct error *err)
{
    int64_t n_tok = 0, at = 0;
    if (e->episodes->harness)
        return sessions_group_make(e, it, err);
    for (int32_t i = 0; i < it->n_sample; i++)
        n_tok += it->sample[i].n_tok;
    struct group *g = group_new(it->prompt.n, it->n_sample, n_tok, err);
    if (!g)
        return NULL;
    group_item_set(e, it, g);
    if (it->prompt.n > 0)
        memcpy(g->prompt, it->prompt.id, (size_t)it->prompt.n * sizeof *g->prompt);
    for (int32_t i = 0; i < it->n_sample; i++) {
        const struct episode *s = &it->sample[i];
        g->sample[i] = sample_make(e, s, at, s->n_tok);
        memcpy(g->token + at, s->token, (size_t)s->n_tok * sizeof *g->token);
        memcpy(g->logp + at, s->logp, (size_t)s->n_tok * sizeof *g->logp);
        memcpy(g->entropy + at, s->entropy, (size_t)s->n_tok * sizeof *g->entropy);
        memcpy(g->newer + at, s->newer, (size_t)s->n_tok * sizeof *g->newer);
        memcpy(g->mask + at, s->mask, (size_t)s->n_tok);
        at += s->n_tok;
    }
    return g;
}

bool items_finish(struct engine *e, struct error *err)
{
    struct episodes *all = e->episodes;
    for (struct episode_item **at = &all->item, *it; (it = *at);) {
        if (it->n_over < it->n_sample) {
            at = &it->next;
            continue;
        }
        if (all->n_finished == all->cap_finished) {
            int64_t cap = MAX(2 * all->cap_finished, (int64_t)64);
            struct group **more = realloc(all->finished, (size_t)cap * sizeof *more);
            if (!more)
                return error_set(err, ERR_NO_MEMORY, "no memory for finished groups");
            all->finished = more;
            all->cap_finished = cap;
        }
        struct group *g = group_make(e, it, err);
        if (!g)
            return false;
        all->finished[all->n_finished++] = g;
        all->n_item--;
        *at = it->next;
        episode_item_free(it);
    }
    return true;
}
