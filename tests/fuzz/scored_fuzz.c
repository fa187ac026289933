/* A hostile group or list of groups for 'rollcall serve --atropos-listen': what is taken is JSON with all fields, and is taken
 * again unchanged. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/serve/atropos_data.h"

#define LIST_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
