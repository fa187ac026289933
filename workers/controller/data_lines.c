#include "workers/controller/data_lines.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/record/prompt_lines.h"
#include "workers/controller/controller.h"

void line_write(const struct controller *c, struct msg_out *m, const struct mval *row)
{
    int64_t line = prompt_line(&c->lines.pairs, mval_i64(row, -1));
    if (line > 0)
        msg_i64(m, "line", line);
}

void lines_release(struct data_lines *l)
{
    buf_release(&l->pairs);
    buf_release(&l->files);
}

bool lines_load(struct controller *c, struct error *err)
{
    bool found;
    buf_clear(&c->lines.pairs);
    buf_clear(&c->lines.files);
    return journal_value_get(c->journal, "lines", &c->lines.pairs, &c->lines.told, err)
           && journal_value_get(c->journal, "line_files", &c->lines.files, &found, err);
}

/* Remember what was reported, in the journal under name too, unless it is known already. */
static bool told_keep(struct controller *c, struct buf *held, const char *name, const void *told, size_t len, struct error *err)
{
    if (len == held->len && memcmp(buf_text(held), told, len) == 0)
        return true;
    buf_clear(held);
    if (!buf_add(held, told, len))
        return error_set(err, ERR_NO_MEMORY, "no memory for where the prompts stand");
    return transaction(c, err) && journal_value_put(c->journal, name, told, len, err);
}

bool lines_take(struct controller *c, const struct mval *pairs, const struct mval *files, struct error *err)
{
    size_t len = 0, files_len = 0;
    const char *list = files ? mval_str(files, &files_len) : NULL;
    const void *pair = pairs ? mval_bin(pairs, &len) : NULL;
    if (list && !told_keep(c, &c->lines.files, "line_files", list, files_len, err))
        return false;
    if (!pair || len % (2 * sizeof(int64_t)) != 0)
        return true;
    if (!c->lines.told)    // also an empty list is kept: it says that they cannot be found by their lines
        c->lines.told = transaction(c, err) && journal_value_put(c->journal, "lines", pair, len, err);
    return c->lines.told && told_keep(c, &c->lines.pairs, "lines", pair, len, err);
}

/* A line by the file that it stands in: " ('PATH', line or row N)", "" when there is but one. Returns out. */
static const char *line_file(const struct controller *c, int64_t line, char *out, size_t size)
{
    const char *found = NULL;
    int64_t first = 0;
    out[0] = 0;
    for (const char *at = buf_text(&c->lines.files), *end; (end = strchr(at, '\n')); at = end + 1) {
        int64_t from = strtoll(at, NULL, 10);
        const char *path = strchr(at, ' ');
        if (path && path < end && from <= line) {
            found = path + 1;
            first = from;
        }
    }
    if (found)
        snprintf(out, size, " ('%.*s', line or row %" PRId64 ")", (int)MIN(strcspn(found, "\n"), (size_t)400), found, line - first + 1);
    return out;
}

const char *row_place(const struct controller *c, int64_t row, char *out, size_t size)
{
    char file[512];
    int64_t line = prompt_line(&c->lines.pairs, row);
    if (line > 0)
        snprintf(out, size, "line %" PRId64 "%s", line, line_file(c, line, file, sizeof file));
    else
        snprintf(out, size, "prompt %" PRId64 " of the data", row);
    return out;
}

bool quarantine_add(struct controller *c, int64_t line, struct buf *text, struct error *err)
{
    struct buf list = BUF_INIT;
    char where[512];
    bool found, ok = false;
    int64_t row = prompt_on_line(&c->lines.pairs, c->n_row, line);
    if (!c->ledger || !c->lines.told)
        error_set(err, ERR_REFUSED, "no worker has loaded the data yet");
    else if (c->lines.pairs.len == 0)
        error_set(err, ERR_REFUSED,
                  "'%.600s' has unusable lines in more than %d places (blank, or with too long a prompt), so that its prompts cannot be "
                  "found by line; raise max_prompt_tokens, or leave these lines out of the file",
                  c->config.dataset, PROMPT_LINES_MAX);
    else if (row < 0)
        error_set(err, ERR_USAGE,
                  "no prompt of this run stands on line %" PRId64 " of '%.600s': it is blank, its prompt is too long, or the "
                  "file ends before it",
                  line, c->config.dataset);
    else if (!ledger_forbid(c->ledger, row))
        error_set(err, ERR_REFUSED, "the prompt on line %" PRId64 "%s is in quarantine already, or the last one left", line,
                  line_file(c, line, where, sizeof where));
    else
        ok = journal_value_get(c->journal, "quarantine", &list, &found, err);
    if (ok && !buf_fmt(&list, "%" PRId64 "\n", row))
        ok = error_set(err, ERR_NO_MEMORY, "no memory for the list of prompts in quarantine");
    ok = ok && transaction(c, err) && journal_value_put(c->journal, "quarantine", list.data, list.len, err);
    if (ok)
        buf_fmt(text, "the prompt on line %" PRId64 "%s is issued no more", line, line_file(c, line, where, sizeof where));
    buf_release(&list);
    return ok;
}

bool quarantine_load(struct controller *c, struct ledger *l, struct error *err)
{
    struct buf text = BUF_INIT;
    bool found, ok = journal_value_get(c->journal, "quarantine", &text, &found, err);
    for (const char *at = buf_text(&text); ok && found && *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL))
        ledger_forbid(l, strtoll(at, NULL, 10));
    buf_release(&text);
    return ok;
}
