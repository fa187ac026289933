#include "workers/controller/numbers.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "workers/controller/controller.h"

bool number_get(struct controller *c, const char *name, int64_t otherwise, int64_t *out, struct error *err)
{
    bool found;
    struct buf text = BUF_INIT;
    bool ok = journal_value_get(c->journal, name, &text, &found, err);
    *out = otherwise;
    if (ok && found && !parse_i64(buf_text(&text), out))
        ok = error_set(err, ERR_DATA, "the journal's value '%s' is not a number", name);
    buf_release(&text);
    return ok;
}

bool number_put(struct controller *c, const char *name, int64_t v, struct error *err)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRId64, v);
    return transaction(c, err) && journal_value_put(c->journal, name, text, (size_t)n, err);
}
