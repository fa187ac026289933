/* A hostile Parquet file: footer, pages, encodings, levels. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/data/parquet/parquet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = { 0 };
    struct buf out = { .max = 1 << 20 };
    bool done = false;
    struct parquet *p = parquet_open(data, size, 1 << 18, 1 << 18, &err);
    for (int64_t n = 0; p && parquet_next(p, &out, &done, &err) && !done; n++) {
        json_error_t why;
        json_t *row = json_loadb(out.data, out.len, JSON_ALLOW_NUL, &why);    // what is written is JSON, whatever was read
        bool odd_key = !row && strstr(why.text, "NUL byte in object key");    // of a map; jansson has no way to keep it
        if ((!row && !odd_key) || n >= parquet_n_row(p))
            abort();
        json_decref(row);
        buf_clear(&out);
        if (n > 2000)
            break;
    }
    parquet_free(p);
    buf_release(&out);
    return 0;
}
