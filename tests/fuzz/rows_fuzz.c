/* A hostile file of data: recognised by what it holds, read to its end twice; and the front matter and patterns of a hostile README. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/data/format.h"
#include "workers/engine/data/layout.h"
#include "workers/engine/hub/hub_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void readme(const char *text, size_t len)
{
    static const char *const files[] = { "README.md", "data/train-00000-of-00001.parquet", "main/test.jsonl", "validation/a.csv" };
    struct hub_names names = { 0 };
    struct error err = { 0 };
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (!hub_names_add(&names, files[i], &err))
            abort();
    if (hub_data_select(&names, text, len, "", "", "org/name", &err)) {
        int n = 0;
        for (int i = 0; i < names.n; i++)
            n += names.wanted[i];
        if (n == 0)
            abort();
    }
    hub_names_release(&names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r;
    struct error err = { 0 };
    struct row_place at;
    struct row_form form;
    bool done = false;
    if (size >= 4 && memcmp(data, "PAR1", 4) == 0)
        return 0;    // parquet_fuzz.c
    if (size >= 4 && memcmp(data, "---", 3) == 0)
        readme((const char *)data, size);
    char *text = malloc(size + 1);    // so that a byte too far is seen
    if (!text)
        return 0;
    memcpy(text, data, size);
    bool open = reader_open(&r, text, size, "fuzz", 1 << 20, &err);
    while (open && reader_next(&r, &at, &done, &err) && !done) {
        if (at.at > size || at.len > size - at.at || at.line < 1)
            abort();
        json_t *row = reader_row(&r, &at, &err);
        if (row && layout_apply(row, NULL, &form, &err)
            && (form.as_is ? !json_is_string(json_object_get(row, "prompt")) : json_array_size(json_object_get(row, "messages")) == 0))
            abort();
        json_decref(row);
    }
    reader_close(&r);
    free(text);
    return 0;
}
