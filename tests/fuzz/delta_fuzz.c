/* A hostile block of differences of weights: its kind, the size of its block, then its bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/node/bulk/delta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct delta_coder *coder;
    struct error err = { 0 };
    if (size < 3)
        return 0;
    size_t n = 1 + (data[1] | (size_t)data[2] << 8);
    uint8_t *base = calloc(n, 1), *out = malloc(n), *copy = malloc(size - 3 + 1);    // so that a byte too far is seen
    if ((!coder && !(coder = delta_coder_new(&err))) || !base || !out || !copy)
        abort();
    memcpy(copy, data + 3, size - 3);
    if (!delta_decode(coder, (enum delta_kind)(data[0] % (DELTA_KIND_COUNT + 1)), copy, size - 3, base, out, n, &err)
        && err.code != ERR_DATA)
        abort();
    free(base);
    free(out);
    free(copy);
    return 0;
}
