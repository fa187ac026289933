/* What the run keeps in its folder (logs, samples of hosts and GPUs, items and their groups), a piece at a time, for a console that does
 * not see the folder. Each answer is bounded, so the agent's loop is held up for a few milliseconds. */
#include "workers/agent/agent_parts.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"
#include "protocol/run/log_places.h"

#define PIECE_BYTES ((size_t)1 << 20)      // after which an answer takes nothing more
#define FILE_BYTES ((size_t)64 << 10)      // of one log file
#define RECORD_BYTES ((int64_t)1 << 20)    // of a group in its file, compressed; a larger one is left out
#define ITEMS_AT_ONCE 2000
#define RECORDS_AT_ONCE 64

static bool logs_write(struct agent *a, const struct mval *known, struct msg_out *m, struct error *err)
{
    char dir[4200], name[64], text[FILE_BYTES];
    struct log_place place[LOG_PLACES];
    int n = 0;
    if (!path_join(dir, sizeof dir, a->run_dir, "logs"))
        return error_set(err, ERR_USAGE, "the run's path is too long");
    for (int64_t i = 0; i < mval_n(known); i++) {
        struct log_place *p = log_place_of(place, &n, mval_text(mval_at(known, i), "name", name, sizeof name));
        if (p)
            p->at = mval_i64(mval_get(mval_at(known, i), "at"), -1);
    }
    log_places_look(dir, place, &n);
    msg_list(m, "files");
    for (int i = 0; i < n && m->buf.len < PIECE_BYTES; i++) {
        int64_t skipped;
        size_t len = log_place_read(dir, &place[i], text, sizeof text, &skipped);
        if (len == 0)
            continue;
        msg_map(m, NULL);
        msg_str(m, "name", place[i].name);
        msg_i64(m, "at", place[i].at);
        msg_i64(m, "skipped", skipped);
        msg_strn(m, "text", text, len);
        msg_end(m);
    }
    msg_end(m);
    return true;
}

struct piece {
    struct msg_out *m;
    int64_t n;
    bool more;
};

static bool sample_write(void *arg, const struct journal_sample *s)
{
    struct piece *p = arg;
    if ((p->more = p->m->buf.len > PIECE_BYTES))
        return false;
    msg_map(p->m, NULL);
    msg_i64(p->m, "seq", s->seq);
    msg_str(p->m, "node", s->node);
    msg_f64(p->m, "time", s->wall_s);
    msg_map(p->m, "figures");
    for (int i = 0; i < s->n; i++)
        msg_f64(p->m, s->figure[i].name, s->figure[i].value);
    msg_end(p->m);
    msg_end(p->m);
    return true;
}

static bool samples_write(struct agent *a, int64_t from, struct msg_out *m, struct error *err)
{
    struct piece p = { .m = m };
    int64_t last = journal_last_sample(a->journal);
    if (last > 0)
        msg_i64(m, "last", last);
    msg_list(m, "samples");
    bool ok = from < 0 || journal_samples_read(a->journal, from, sample_write, &p, err);
    msg_end(m);
    msg_bool(m, "more", p.more);
    return ok;
}

static bool item_write(void *arg, const struct journal_item *i)
{
    struct piece *p = arg;
    if ((p->more = p->n++ == ITEMS_AT_ONCE))
        return false;
    msg_map(p->m, NULL);
    msg_i64(p->m, "item", i->item);
    msg_i64(p->m, "row", i->prompt_row);
    msg_i64(p->m, "rollout_step", i->rollout_step);
    msg_i64(p->m, "version", i->weight_version);
    msg_i64(p->m, "fate", i->fate);
    msg_i64(p->m, "step", i->step);
    msg_f64(p->m, "reward_mean", i->reward_mean);
    msg_bool(p->m, "kept", i->file_offset >= 0);
    msg_end(p->m);
    return true;
}

static bool value_write(struct agent *a, const char *name, struct msg_out *m, struct error *err)
{
    struct buf value = BUF_INIT;
    bool found, ok = journal_value_get(a->journal, name, &value, &found, err);
    if (ok && found)
        msg_bin(m, name, value.data, value.len);
    buf_release(&value);
    return ok;
}

static bool items_write(struct agent *a, int64_t from, struct msg_out *m, struct error *err)
{
    struct piece p = { .m = m };
    int64_t last = journal_last_item(a->journal);
    if (last >= 0)
        msg_i64(m, "last", last);
    msg_list(m, "items");
    bool ok = from < 0 || journal_items_read(a->journal, from, item_write, &p, err);
    msg_end(m);
    msg_bool(m, "more", p.more);
    return ok && (from >= 0 || value_write(a, "lines", m, err)) && value_write(a, "quarantine", m, err);
}

static bool item_take(void *arg, const struct journal_item *i)
{
    *(struct journal_item *)arg = *i;
    return false;
}

static bool records_write(struct agent *a, const struct mval *items, struct msg_out *m, struct error *err)
{
    char path[4200];
    if (!run_config_groups_path(&a->config, a->run_dir, path, sizeof path))
        return error_set(err, ERR_USAGE, "the path of the run's groups is too long");
    msg_list(m, "records");
    for (int64_t k = 0; k < MIN(mval_n(items), (int64_t)RECORDS_AT_ONCE) && m->buf.len < PIECE_BYTES; k++) {
        struct error unread;
        struct buf record = BUF_INIT;
        int64_t item = mval_i64(mval_at(items, k), -1);
        struct journal_item row = { .item = -1 };
        if (!journal_items_read(a->journal, item, item_take, &row, err))
            return false;
        if (item >= 0 && row.item == item && row.file_offset >= 0 && row.file_bytes <= RECORD_BYTES
            && rollout_file_read(path, row.file_offset, row.file_bytes, &record, &unread)) {
            msg_map(m, NULL);
            msg_i64(m, "item", item);
            msg_bin(m, "record", record.data, record.len);
            msg_end(m);
        }
        buf_release(&record);
    }
    msg_end(m);
    return true;
}

static bool kept_write(struct agent *a, const struct msg_in *in, struct msg_out *m, struct error *err)
{
    char what[16];
    int64_t from = mval_i64(mval_get(in->root, "from"), -1);
    mval_text(in->root, "what", what, sizeof what);
    if (strcmp(what, "log") == 0)
        return logs_write(a, mval_get(in->root, "files"), m, err);
    if (!a->journal && !(a->journal = journal_open_reader(a->run_dir, err)))
        return false;
    if (strcmp(what, "samples") == 0)
        return samples_write(a, from, m, err);
    if (strcmp(what, "items") == 0)
        return items_write(a, from, m, err);
    if (strcmp(what, "records") == 0)
        return records_write(a, mval_get(in->root, "items"), m, err);
    return error_set(err, ERR_USAGE, "'%s' is not kept; log, samples, items and records are", what);
}

void kept_asked(struct agent *a, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    if (kept_write(a, in, &m, &err) && msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
}
