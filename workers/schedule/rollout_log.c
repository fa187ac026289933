#include "workers/schedule/rollout_log.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/rollout_file.h"
#include "workers/engine/sampler/eval.h"

#define TAIL_CHUNK 65536
#define TEXT_MAX 65536    // prompts of a line

struct rollout_log {
    char path[4200];
    int fd;
    bool told;               // that it cannot be written
    int64_t last;            // train_step of the last line; -1: there is none
    int64_t item;            // the next to be looked at
    int64_t skip;            // a rollout step whose first items are not held any more; -1: none
    bool begun;              // item has been set
    int64_t rollout_step;    // that is being gathered; -1: none
    int64_t version;         // its weights'
    char **text;             // (n_text, owned) of its prompts so far
    int64_t n_text, cap;
};

/* Where the line that ends before `end` begins; -1: the file cannot be read. */
static off_t line_begin(int fd, off_t end)
{
    char chunk[TAIL_CHUNK];
    while (end > 0) {
        off_t from = end > TAIL_CHUNK ? end - TAIL_CHUNK : 0;
        if (pread(fd, chunk, (size_t)(end - from), from) != end - from)
            return -1;
        for (off_t i = end - from; i > 0; i--)
            if (chunk[i - 1] == '\n')
                return from + i;
        end = from;
    }
    return 0;
}

/* Cut off what follows the last line feed, and find the last whole line's step. */
static bool tail_read(struct rollout_log *l, struct error *err)
{
    struct stat st;
    char head[64] = "";
    int64_t step;
    if (fstat(l->fd, &st) != 0)
        return error_errno(err, "cannot read '%s'", l->path);
    off_t end = line_begin(l->fd, st.st_size), begin = end > 0 ? line_begin(l->fd, end - 1) : end;
    if (end < 0 || begin < 0 || (end < st.st_size && ftruncate(l->fd, end) != 0))
        return error_errno(err, "cannot read '%s'", l->path);
    if (end == 0)
        return true;
    if (pread(l->fd, head, sizeof head - 1, begin) < 0 || sscanf(head, "{\"train_step\":%" PRId64, &step) != 1)
        return error_set(err, ERR_DATA, "'%s' is no rollout log: its last line does not begin with a train_step", l->path);
    l->last = step;
    return true;
}

struct rollout_log *rollout_log_open(const char *dir, struct error *err)
{
    struct rollout_log *l = calloc(1, sizeof *l);
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory for the rollout log");
        return NULL;
    }
    l->last = l->skip = l->rollout_step = -1;
    snprintf(l->path, sizeof l->path, "%.4100s/log.jsonl", dir);
    l->fd = file_create(l->path, O_RDWR | O_APPEND, 0644, err);
    if (l->fd < 0 || !tail_read(l, err)) {
        rollout_log_close(l);
        return NULL;
    }
    return l;
}

static void texts_drop(struct rollout_log *l)
{
    for (int64_t i = 0; i < l->n_text; i++)
        free(l->text[i]);
    l->n_text = 0;
    l->rollout_step = -1;
}

void rollout_log_close(struct rollout_log *l)
{
    if (!l)
        return;
    texts_drop(l);
    free(l->text);
    if (l->fd >= 0)
        close(l->fd);
    free(l);
}

static void failure_tell(struct rollout_log *l, const struct error *err)
{
    if (!l->told)
        log_warn("no lines for '%s': %s", l->path, err->text);
    l->told = true;
}

static bool text_add(struct rollout_log *l, const struct ledger_item *i, const char *groups_path, struct error *err)
{
    struct buf record = { .max = ROLLOUT_RECORD_MAX + 1 };
    struct msg_in in;
    bool ok = false;
    if (l->n_text == TEXT_MAX)
        return error_set(err, ERR_FULL, "a rollout step of more than %d prompts is not logged", TEXT_MAX);
    if (l->n_text == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 64;
        char **grown = realloc(l->text, (size_t)cap * sizeof *grown);
        if (!grown)
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " texts", cap);
        l->text = grown;
        l->cap = cap;
    }
    TRY(rollout_file_read(groups_path, i->summary.file_offset, i->summary.file_bytes, &record, err));
    TRY(msg_read_request(&in, record.data, record.len, err));
    l->text[l->n_text] = group_text(in.root, err);
    ok = l->text[l->n_text] != NULL;
    l->n_text += ok;
    msg_in_release(&in);
out:
    buf_release(&record);
    return ok;
}

static bool line_write(struct rollout_log *l, struct error *err)
{
    struct buf line = BUF_INIT;
    struct stat st;
    bool ok = false;
    TRY(rollout_log_line(&line, l->version, (const char *const *)l->text, l->n_text, err));
    if (fstat(l->fd, &st) != 0) {
        error_errno(err, "cannot write");
        goto out;
    }
    for (size_t done = 0; done < line.len;) {
        ssize_t n = write(l->fd, line.data + done, line.len - done);
        if (n < 0) {
            error_errno(err, "cannot write");
            if (ftruncate(l->fd, st.st_size) != 0)
                log_warn("'%s' ends in half a line", l->path);
            goto out;
        }
        done += (size_t)n;
    }
    ok = true;
out:
    buf_release(&line);
    return ok;
}

/* The rollout step that is being gathered is whole. */
static void step_end(struct rollout_log *l)
{
    struct error err;
    if (!line_write(l, &err))
        failure_tell(l, &err);
    l->last = l->version;
    texts_drop(l);
}

bool rollout_log_turn(struct rollout_log *l, const struct ledger *ledger, const char *groups_path, int64_t interval)
{
    struct error err;
    const struct ledger_item *i = ledger_find(ledger, l->item);
    if (!l->begun || (!i && l->item < ledger_first(ledger))) {    // its item has been forgotten: the rest of a step makes no line
        texts_drop(l);
        l->item = ledger_first(ledger);
        i = ledger_find(ledger, l->item);
        if (!i)
            return false;
        l->skip = l->item > 0 ? i->rollout_step : -1;
        l->begun = true;
    }
    if (l->rollout_step >= 0 && (!i || i->rollout_step != l->rollout_step)) {    // a rollout step is opened as a whole
        step_end(l);
        return i != NULL;
    }
    if (!i)
        return false;
    bool due = interval > 0 && i->rollout_step != l->skip && (l->last < 0 || i->version >= l->last + interval);
    if (l->rollout_step < 0 && !due) {
        l->item++;
        return true;
    }
    struct ledger_state state;
    ledger_state(ledger, &state);
    if (i->fate == LEDGER_ISSUED || i->fate == LEDGER_LEASED || i->rollout_step >= state.n_cut)    // only the cut says which count
        return false;
    if (i->fate == LEDGER_STOPPED) {
        l->item++;
        return true;
    }
    l->rollout_step = i->rollout_step;
    l->version = i->version;
    if (!text_add(l, i, groups_path, &err)) {
        failure_tell(l, &err);
        l->skip = l->rollout_step;
        texts_drop(l);
    }
    l->item++;
    return true;
}
