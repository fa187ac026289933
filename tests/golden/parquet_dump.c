/* parquet_dump FILE: the rows of a Parquet file as JSON lines, for check_parquet.py. */
#include <stdio.h>
#include "protocol/base/file.h"
#include "workers/engine/data/parquet/parquet.h"

int main(int argc, char **argv)
{
    struct error err = { 0 };
    struct file_map map;
    struct buf out = { .max = (size_t)8 << 30 };
    bool done = false;
    if (argc != 2 || !file_map_open(&map, argv[1], &err)) {
        fprintf(stderr, "%s\n", argc == 2 ? err.text : "usage: parquet_dump FILE");
        return 2;
    }
    struct parquet *p = parquet_open(map.data, map.size_bytes, 0, 0, &err);
    bool ok = p != NULL;
    while (ok && !done) {
        buf_clear(&out);
        ok = parquet_next(p, &out, &done, &err);
        if (ok && !done)
            printf("%s\n", buf_text(&out));
    }
    if (!ok)
        fprintf(stderr, "%s\n", err.text);
    parquet_free(p);
    buf_release(&out);
    file_map_close(&map);
    return ok ? 0 : 1;
}
