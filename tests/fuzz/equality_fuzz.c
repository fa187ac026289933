/* equality_fuzz.c - two answers, separated by a line end: equality is symmetric, reflexive, the same twice, and comes
 * back
 *
 *     cmake --preset fuzz && cmake --build --preset fuzz --target equality_fuzz
 *     build/fuzz/fuzz/equality_fuzz -max_total_time=60 -timeout=5 -dict=tests/fuzz/latex.dict \
 *         tests/fuzz/corpus/equality */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/error.h"
#include "workers/reward/math/math.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
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
    math_answer(m, b, nb, a, na, &ba);
    math_answer(m, a, na, b, nb, &again);
    BUG_IF(ab.verdict != again.verdict, "%d, then %d", ab.verdict, again.verdict);
    /* what cannot be read is "cannot tell" as gt_answer and "different" as an answer; otherwise the sides may be
     * swapped */
    /* Only with LONG: chains of relations that no one writes can still differ by side, and CI explores. */
    const char *whole = getenv("LONG");
    if (whole && whole[0] && ab.pred_parsed && ab.gold_parsed && ba.pred_parsed && ba.gold_parsed)
        BUG_IF((ab.verdict == VERDICT_EQUAL && ba.verdict == VERDICT_DIFFERENT) ||
               (ab.verdict == VERDICT_DIFFERENT && ba.verdict == VERDICT_EQUAL),
               "'%s' and '%s': %d by '%s' one way, %d by '%s' the other", a, b, ab.verdict, ab.rule, ba.verdict,
                   ba.rule);
    math_answer(m, a, na, a, na, &self);
    BUG_IF(self.verdict != VERDICT_EQUAL && strspn(a, " \t\r\f\v") != na && self.pred[0], "'%s' is not itself: %s", a,
           self.rule);
    free(a);
    free(b);
    return 0;
}
