/* equality_fuzz.c - two answers, separated by a line end: equality is symmetric, reflexive, the same twice, and comes
 * back
 *
 * Asked of the verdict as the scorer gives it, and of the relation between the parsed answers alone, where neither the
 * same text nor the same words settle it first.
 *
 *     cmake --preset fuzz && cmake --build --preset fuzz --target equality_fuzz
 *     build/fuzz/fuzz/equality_fuzz -max_total_time=60 -timeout=5 -dict=tests/fuzz/latex.dict \
 *         tests/fuzz/corpus/equality */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/math/node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

struct asked {
    enum tri t;
    const char *rule;
    bool parsed;     // both were
    bool bounded;    // the budget or the memory of a check ran out: how far it came depends on what was done first
};

/* The relation alone, of two answers as they stand. */
static struct asked relation(struct math *m, const char *a, const char *b)
{
    struct asked out = { .t = TRI_UNKNOWN, .rule = "" };
    math_start(m);
    struct math_node *x = math_parse(m, a, strlen(a), false), *y = x ? math_parse(m, b, strlen(b), false) : NULL;
    out.parsed = x && y;
    if (out.parsed)
        out.t = math_compare(m, x, y, &out.rule);
    out.bounded = m->steps < 0 || m->out_of_memory;
    return out;
}

static void relation_check(struct math *m, const char *a, const char *b)
{
    struct asked ab = relation(m, a, b), ba = relation(m, b, a), aa = relation(m, a, a);
    if (ab.parsed && ba.parsed && !ab.bounded && !ba.bounded)
        BUG_IF(ab.t != ba.t, "'%s' and '%s': %d by '%s' one way, %d by '%s' the other", a, b, ab.t, ab.rule, ba.t, ba.rule);
    BUG_IF(aa.parsed && aa.t == TRI_NO, "'%s' is not itself: %s", a, aa.rule);
}

/* Answers that are nearly the same are where the two ways round differ: every other time the second one is made out of
 * the first. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    size_t na = line ? (size_t)(line - data) : 0;
    if (seed % 2 == 0 || na == 0 || 2 * na + 1 >= max_size)
        return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data + na + 1, data, na);
    return na + 1 + LLVMFuzzerMutate(data + na + 1, na, max_size - na - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct math_config config = MATH_CONFIG_DEFAULT;
    struct error err = { 0 };
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    if (!line)
        return 0;
    size_t na = (size_t)(line - data), nb = size - na - 1;
    static struct math *m;    // made once: making it costs more than a check
    if (!m)
        m = math_new(&config, &err);
    BUG_IF(!m, "%s", err.text);
    char *a = malloc(na + 1), *b = malloc(nb + 1);
    BUG_IF(!a || !b, "no memory");
    memcpy(a, data, na);
    memcpy(b, line + 1, nb);
    a[na] = b[nb] = 0;
    struct math_result ab, ba, self, again;
    math_answer(m, a, na, b, nb, &ab);
    bool bounded = m->steps < 0 || m->out_of_memory;
    math_answer(m, b, nb, a, na, &ba);
    bounded |= m->steps < 0 || m->out_of_memory;
    math_answer(m, a, na, b, nb, &again);
    BUG_IF(ab.verdict != again.verdict, "%d, then %d", ab.verdict, again.verdict);
    /* Some rules treat the two sides differently on purpose; so does what cannot be read, which is "cannot tell" as
     * gt_answer (the data are at fault) and "different" as an answer. */
    bool one_sided = math_rule_one_sided(ab.rule) || math_rule_one_sided(ba.rule);
    if (!bounded && !one_sided && ab.pred_parsed && ab.gold_parsed && ba.pred_parsed && ba.gold_parsed)
        BUG_IF(ab.verdict != ba.verdict, "'%s' and '%s': %d by '%s' one way, %d by '%s' the other", a, b, ab.verdict, ab.rule, ba.verdict,
               ba.rule);
    math_answer(m, a, na, a, na, &self);
    BUG_IF(self.verdict != VERDICT_EQUAL && strspn(a, " \t\r\f\v") != na && self.pred[0], "'%s' is not itself: %s", a, self.rule);
    if (strlen(a) == na && strlen(b) == nb)
        relation_check(m, a, b);
    free(a);
    free(b);
    return 0;
}
