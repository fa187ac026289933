/* A hostile group or list of groups for 'rollcall serve --atropos-listen': what is taken is JSON with all fields, and is taken
 * again unchanged. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/atropos/atropos_data.h"
#include "workers/atropos/atropos_group.h"

#define LIST_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a run takes of it keeps to the run's bounds. */
static void run_try(const struct scored *posted)
{
    static const struct posted_rules rules = { .max_seq_tok = 50, .n_id = 500 };
    struct error err;
    struct group *g = posted_group(posted, &rules, 1, &err);
    if (posted_version(posted, 7) < -1 || posted_version(posted, 7) > 7)
        abort();
    if (!g)
        return;
    int64_t at = 0;
    if (g->n_sample != posted->n_seq || g->n_prompt < 1)
        abort();
    for (int32_t i = 0; i < g->n_sample; at += g->sample[i++].n_tok)
        if (g->sample[i].first_tok != at || g->sample[i].n_tok < 1 || g->n_prompt + g->sample[i].n_tok > rules.max_seq_tok)
            abort();
    if (at != g->n_tok)
        abort();
    for (int64_t k = 0; k < g->n_tok; k++)
        if (g->token[k] < 0 || g->token[k] >= rules.n_id || !(g->logp[k] <= 1))
            abort();
    group_free(g);
}

static void group_check(struct scored *g)
{
    struct scored *again;
    struct scored_fault fault;
    json_error_t why;
    if (g->n_seq < 1 || g->n_seq > SCORED_SEQS_MAX || g->env_id < -1 || strlen(g->text) != g->len)
        abort();
    if (!scored_read(g->text, g->len, &again, &fault) || again->len != g->len || strcmp(again->text, g->text) != 0
        || again->n_seq != g->n_seq || again->env_id != g->env_id)
        abort();
    scored_drop(again);
    json_t *v = json_loadb(g->text, g->len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    if (v && (json_object_size(v) != 14 || json_array_size(json_object_get(v, "tokens")) != (size_t)g->n_seq))
        abort();
    if (!v && json_error_code(&why) != json_error_numeric_overflow)    // ids may be longer than jansson's
        abort();
    json_decref(v);
    run_try(g);
    scored_drop(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct scored *group[LIST_MAX];
    struct scored_fault fault;
    int64_t n = 0;
    char *text = malloc(size ? size : 1);    // of exactly this size, so that reading past it is found
    if (!text)
        return 0;
    memcpy(text, data, size);
    if (scored_read(text, size, group, &fault))
        group_check(group[0]);
    if (scored_read_list(text, size, group, LIST_MAX, &n, &fault))
        for (int64_t i = 0; i < n; i++)
            group_check(group[i]);
    free(text);
    return 0;
}
