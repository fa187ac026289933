/* verify_fuzz.c - a verifier, a ground truth and a response: no crash, a finite score, the same twice
 *
 * The first byte chooses the verifier; the first NUL after it ends the ground truth, which is read as JSON where it is JSON.
 *
 *     cmake --preset fuzz && cmake --build --preset fuzz --target verify_fuzz
 *     build/fuzz/fuzz/verify_fuzz -max_total_time=60 -timeout=10 tests/fuzz/corpus/verify */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/reward/verify/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct verify_host h;
    static bool ready;
    struct verify_options options = VERIFY_OPTIONS_DEFAULT;
    struct error err;
    size_t n;
    const struct verifier *table = verify_table(&n);
    if (!ready && !(ready = verify_host_init(&h, &options, &err)))
        abort();
    if (size < 2)
        return 0;
    const uint8_t *end = memchr(data + 1, 0, size - 1);
    if (!end)
        return 0;
    const char *text = (const char *)data + 1;
    json_t *truth = json_loadb(text, (size_t)(end - data - 1), JSON_DECODE_ANY, NULL);
    truth = truth ? truth : json_stringn(text, (size_t)(end - data - 1));
    if (!truth)
        return 0;
    struct verify_input in = { span_of((const char *)end + 1, (size_t)(data + size - end - 1)), (int64_t)size, truth, NULL };
    struct verify_result a, b;
    const struct verifier *v = &table[data[0] % n];
    if (strncmp(v->name, "code", 4) == 0) {    // running a program takes a sandbox; only its tests are read
        struct error ignored;
        (void)!verify_check(&h, v, truth, &ignored);
        json_decref(truth);
        return 0;
    }
    verify_run(&h, v, &in, &a);
    verify_run(&h, v, &in, &b);
    if (!isfinite(a.score) || a.score > 1 || a.state != b.state || a.score != b.score || strcmp(a.why, b.why) != 0)
        abort();
    json_decref(truth);
    return 0;
}
