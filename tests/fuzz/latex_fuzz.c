/* latex_fuzz.c - any bytes as a whole response: extraction, parser and comparison come back, twice with the same
 * verdict
 *
 *     cmake --preset fuzz && cmake --build --preset fuzz --target latex_fuzz
 *     build/fuzz/fuzz/latex_fuzz -max_total_time=60 -timeout=5 -dict=tests/fuzz/latex.dict tests/fuzz/corpus/latex */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/math/math.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char gold[] = "\\frac{1}{2}";
    struct math_config config = MATH_CONFIG_DEFAULT;
    struct error err = { 0 };
    static struct math *m;    // made once: making it costs more than a check
    if (!m)
        m = math_new(&config, &err);
    BUG_IF(!m, "%s", err.text);
    char *text = malloc(size + 1);    // so that a read behind the end is seen
    BUG_IF(!text, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    struct math_result a, b;
    math_response(m, text, size, gold, sizeof gold - 1, &a);
    math_response(m, text, size, gold, sizeof gold - 1, &b);
    BUG_IF(a.verdict != b.verdict || strcmp(a.rule, b.rule) != 0, "%d by '%s', then %d by '%s'", a.verdict, a.rule, b.verdict, b.rule);
    math_response(m, gold, sizeof gold - 1, text, size, &a);
    math_answer(m, text, size, gold, sizeof gold - 1, &a);
    free(text);
    return 0;
}
