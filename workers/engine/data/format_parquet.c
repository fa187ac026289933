/* Parquet: rows are written as JSON once, since reading one row of a page means reading all before it. */
#include "workers/engine/data/format.h"
#include <inttypes.h>
#include <string.h>
#include "workers/engine/data/parquet/parquet.h"

static bool parquet_recognise(const char *p, size_t len)
{
    return len >= 4 && memcmp(p, "PAR1", 4) == 0;
}

static bool rows_open(struct reader *r, struct error *err)
{
    r->parquet = parquet_open((const uint8_t *)r->text, r->len, 0, DATA_ROW_BYTES_MAX, err);
    return r->parquet != NULL;
}

static bool rows_next(struct reader *r, struct row_place *at, bool *done, struct error *err)
{
    *at = (struct row_place){ .at = r->built.len, .line = r->line + 1 };
    if (!parquet_next(r->parquet, &r->built, done, err))
        return false;
    r->line += !*done;
    at->len = (uint32_t)(r->built.len - at->at);
    return true;
}

static json_t *rows_row(const struct reader *r, const struct row_place *at, struct error *err)
{
    return row_parse(r->built.data + at->at, at->len, err);
}

static void rows_finish(struct reader *r)
{
    parquet_free(r->parquet);
    r->parquet = NULL;
}

const struct data_format format_parquet = {
    .name = "Parquet",
    .recognise = parquet_recognise,
    .open = rows_open,
    .next = rows_next,
    .row = rows_row,
    .finish = rows_finish,
    .close = rows_finish,
};
