#include "console/fleet/far_folder.h"
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"
#include "protocol/run/log_places.h"

#define AGAIN_NS ((int64_t)1000000000)    // after an answer that had everything, until the same kind is asked for again
#define LOG_BYTES ((off_t)1 << 20)
#define SAMPLES_BEFORE 20000
#define ITEMS_BEFORE 2000
#define ITEMS_MAX ((int64_t)1 << 18)    // as many as the archive holds
#define GROUPS_BYTES ((int64_t)256 << 20)
#define RECORDS_AT_ONCE 32
#define FIGURES_MAX 512

enum kind {
    KIND_LOG,
    KIND_SAMPLES,
    KIND_ITEMS,
    KIND_RECORDS,
    N_KIND,
};
static const char *const kind_names[N_KIND] = { "log", "samples", "items", "records" };

struct far_item {
    struct journal_item row;    // file_offset: in our file; -1: its record is not here
    bool wanted;                // its record is to be asked for
};
struct far_folder {
    char dir[4096];
    struct log_place place[LOG_PLACES];
    int n_place;
    struct journal *journal;
    struct rollout_file *groups;
    int64_t groups_bytes;
    enum kind asked;
    int64_t due_ns[N_KIND];
    int64_t sample, item;     // from which on to ask; -1: not known yet
    int64_t incarnation;      // of the items that are here
    struct far_item *held;    // (n of cap) in order of items
    int64_t n, cap;
    int64_t asked_item[RECORDS_AT_ONCE];
    int n_asked;
};

struct far_folder *far_folder_new(const char *dir, struct error *err)
{
    char path[4200];
    struct far_folder *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory for what the far run keeps");
        return NULL;
    }
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    f->sample = f->item = f->incarnation = -1;
    if (!path_join(path, sizeof path, dir, "rollouts") || !dir_make(path, 0700, err) || !(f->journal = journal_open(dir, err))
        || !path_join(path, sizeof path, dir, "rollouts/groups.zst") || !(f->groups = rollout_file_open(path, 0, NULL, err))) {
        far_folder_free(f);
        return NULL;
    }
    return f;
}

void far_folder_free(struct far_folder *f)
{
    if (!f)
        return;
    journal_close(f->journal);
    rollout_file_close(f->groups);
    free(f->held);
    free(f);
}

/* ---- asking ---- */

static void log_ask(struct far_folder *f, struct msg_out *m)
{
    msg_list(m, "files");
    for (int i = 0; i < f->n_place; i++) {
        msg_map(m, NULL);
        msg_str(m, "name", f->place[i].name);
        msg_i64(m, "at", f->place[i].at);
        msg_end(m);
    }
    msg_end(m);
}

/* The newest records first are what an operator looks at, but items come to the journal in order: so the oldest that is wanted. */
static void records_ask(struct far_folder *f, struct msg_out *m)
{
    f->n_asked = 0;
    msg_list(m, "items");
    for (int64_t i = 0; i < f->n && f->n_asked < RECORDS_AT_ONCE; i++)
        if (f->held[i].wanted)
            msg_i64(m, NULL, f->asked_item[f->n_asked++] = f->held[i].row.item);
    msg_end(m);
}

static bool record_is_wanted(const struct far_folder *f)
{
    for (int64_t i = 0; i < f->n; i++)
        if (f->held[i].wanted)
            return true;
    return false;
}

bool far_folder_ask(struct far_folder *f, struct msg_out *m, int64_t incarnation, int64_t now_ns)
{
    if (f->incarnation != incarnation) {
        f->incarnation = incarnation;
        f->n = 0;
        f->item = -1;
        f->due_ns[KIND_ITEMS] = 0;
    }
    int k = 0;
    while (k < N_KIND && (now_ns < f->due_ns[k] || (k == KIND_RECORDS && !record_is_wanted(f))))
        k++;
    if (k == N_KIND)
        return false;
    f->asked = (enum kind)k;
    f->due_ns[k] = now_ns + AGAIN_NS;
    msg_begin(m, MSG_KEPT);
    msg_str(m, "what", kind_names[k]);
    switch (f->asked) {
    case KIND_LOG: log_ask(f, m); break;
    case KIND_SAMPLES: msg_i64(m, "from", f->sample); break;
    case KIND_ITEMS: msg_i64(m, "from", f->item); break;
    case KIND_RECORDS: records_ask(f, m); break;
    case N_KIND: break;
    }
    return true;
}

/* ---- taking ---- */

static bool text_append(const struct far_folder *f, const char *name, int64_t skipped, const char *text, size_t len, struct error *err)
{
    char path[4300], note[96] = "";
    struct stat st;
    snprintf(path, sizeof path, "%s/logs/%s", f->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > LOG_BYTES && ftruncate(fd, 0) != 0)
        st.st_size = 0;    // it grows on
    int n = skipped > 0 ? snprintf(note, sizeof note, "%" PRId64 " bytes of this log are skipped: it grows too fast\n", skipped) : 0;
    bool ok = fd >= 0 && write(fd, note, (size_t)n) == n && write(fd, text, len) == (ssize_t)len;
    if (!ok)
        error_errno(err, "cannot write '%s'", path);
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool log_take(struct far_folder *f, const struct mval *files, struct error *err)
{
    for (int64_t i = 0; i < mval_n(files); i++) {
        char name[64];
        size_t len;
        const struct mval *v = mval_at(files, i);
        const char *text = mval_str(mval_get(v, "text"), &len);
        struct log_place *p = log_place_of(f->place, &f->n_place, mval_text(v, "name", name, sizeof name));
        if (!p || !text)
            continue;
        p->at = mval_i64(mval_get(v, "at"), p->at);
        if (!text_append(f, p->name, mval_i64(mval_get(v, "skipped"), 0), text, len, err))
            return false;
    }
    return true;
}

static bool sample_take(struct far_folder *f, const struct mval *v, struct error *err)
{
    char node[64], name[FIGURES_MAX][64];
    struct journal_metric figure[FIGURES_MAX];
    const struct mval *figures = mval_get(v, "figures");
    int n = 0;
    for (int64_t i = 0; i < mval_n(figures) && n < FIGURES_MAX; i++) {
        size_t len;
        const char *key = mval_key(figures, i, &len);
        if (!key || len >= sizeof name[0])
            continue;
        snprintf(name[n], sizeof name[n], "%.*s", (int)len, key);
        figure[n] = (struct journal_metric){ name[n], mval_f64(mval_at(figures, i), NAN) };
        n++;
    }
    f->sample = MAX(f->sample, mval_i64(mval_get(v, "seq"), 0));
    return journal_sample_add(f->journal, mval_text(v, "node", node, sizeof node), mval_f64(mval_get(v, "time"), 0), figure, n, err);
}

static bool samples_take(struct far_folder *f, const struct mval *root, struct error *err)
{
    const struct mval *list = mval_get(root, "samples");
    if (f->sample < 0) {
        f->sample = MAX(mval_i64(mval_get(root, "last"), 0) - SAMPLES_BEFORE, (int64_t)0);
        return true;
    }
    for (int64_t i = 0; i < mval_n(list); i++)
        if (!sample_take(f, mval_at(list, i), err))
            return false;
    return true;
}

/* The place of an item; added at the end, since they come in order. NULL: there is no room. */
static struct far_item *item_of(struct far_folder *f, int64_t item)
{
    int64_t lo = 0, hi = f->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (f->held[mid].row.item < item)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < f->n)
        return f->held[lo].row.item == item ? &f->held[lo] : NULL;
    if (f->n == f->cap) {
        int64_t cap = MAX(2 * f->cap, (int64_t)4096);
        struct far_item *grown = cap <= ITEMS_MAX ? realloc(f->held, (size_t)cap * sizeof *grown) : NULL;
        if (!grown)
            return NULL;
        f->held = grown;
        f->cap = cap;
    }
    f->held[f->n] = (struct far_item){ .row = { .item = item, .file_offset = -1 } };
    return &f->held[f->n++];
}

/* Into our journal. While its record is on its way an item counts as not yet trained on, so that those who read it look again. */
static bool item_put(struct far_folder *f, const struct far_item *h, struct error *err)
{
    struct journal_item row = h->row;
    if (h->wanted)
        row.fate = ITEM_RETURNED;
    return journal_item_put(f->journal, &row, err);
}

static bool item_is_settled(enum item_fate fate)
{
    return fate != ITEM_ISSUED && fate != ITEM_RETURNED;
}

static bool items_take(struct far_folder *f, const struct mval *root, struct error *err)
{
    static const char *const values[] = { "lines", "quarantine" };
    const struct mval *list = mval_get(root, "items");
    int64_t unsettled = -1;
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        size_t len;
        const void *data = mval_bin(mval_get(root, values[i]), &len);
        if (data && !journal_value_put(f->journal, values[i], data, len, err))
            return false;
    }
    if (f->item < 0) {
        f->item = MAX(mval_i64(mval_get(root, "last"), -1) - ITEMS_BEFORE, (int64_t)0);
        return true;
    }
    for (int64_t i = 0; i < mval_n(list); i++) {
        const struct mval *v = mval_at(list, i);
        int64_t item = mval_i64(mval_get(v, "item"), -1), fate = mval_i64(mval_get(v, "fate"), ITEM_ISSUED);
        struct far_item *h = item >= 0 ? item_of(f, item) : NULL;
        if (!h)
            continue;
        h->row.prompt_row = mval_i64(mval_get(v, "row"), -1);
        h->row.rollout_step = mval_i64(mval_get(v, "rollout_step"), 0);
        h->row.weight_version = mval_i64(mval_get(v, "version"), 0);
        h->row.fate = fate >= ITEM_ISSUED && fate <= ITEM_STOPPED ? (enum item_fate)fate : ITEM_ISSUED;
        h->row.step = mval_i64(mval_get(v, "step"), -1);
        h->row.reward_mean = mval_f64(mval_get(v, "reward_mean"), NAN);
        h->wanted = mval_bool(mval_get(v, "kept"), false) && h->row.file_offset < 0 && f->groups_bytes < GROUPS_BYTES;
        if (unsettled < 0 && !item_is_settled(h->row.fate))
            unsettled = item;
        if (!item_put(f, h, err))
            return false;
    }
    if (unsettled >= 0)
        f->item = unsettled;
    else if (f->n > 0)
        f->item = f->held[f->n - 1].row.item + 1;
    return true;
}

static bool record_take(struct far_folder *f, const struct mval *v, struct error *err)
{
    size_t len;
    int64_t item = mval_i64(mval_get(v, "item"), -1);
    const void *data = mval_bin(mval_get(v, "record"), &len);
    struct far_item *h = item >= 0 ? item_of(f, item) : NULL;
    if (!h || !h->wanted || !data)
        return true;
    if (!rollout_file_append(f->groups, data, len, &h->row.file_offset, &h->row.file_bytes, err))
        return false;
    f->groups_bytes += h->row.file_bytes;
    return true;
}

static bool records_take(struct far_folder *f, const struct mval *root, struct error *err)
{
    const struct mval *list = mval_get(root, "records");
    for (int64_t i = 0; i < mval_n(list); i++)
        if (!record_take(f, mval_at(list, i), err))
            return false;
    int64_t last = mval_n(list) > 0 ? mval_i64(mval_get(mval_at(list, mval_n(list) - 1), "item"), -1) : INT64_MAX;
    for (int i = 0; i < f->n_asked; i++) {
        struct far_item *h = item_of(f, f->asked_item[i]);
        if (!h || (h->row.file_offset < 0 && h->row.item > last))    // the answer was full before it: ask again
            continue;
        h->wanted = false;    // it is here, or the run has not sent it and will not
        if (!item_put(f, h, err))
            return false;
    }
    f->due_ns[KIND_RECORDS] = 0;
    return true;
}

bool far_folder_take(struct far_folder *f, const struct mval *root, int64_t now_ns, struct error *err)
{
    bool ok = true;
    if (!root)
        return true;
    if (mval_bool(mval_get(root, "more"), false))
        f->due_ns[f->asked] = now_ns;
    if (f->asked == KIND_LOG)
        return log_take(f, mval_get(root, "files"), err);
    if (!journal_begin(f->journal, err))
        return false;
    switch (f->asked) {
    case KIND_SAMPLES: ok = samples_take(f, root, err); break;
    case KIND_ITEMS: ok = items_take(f, root, err); break;
    case KIND_RECORDS: ok = records_take(f, root, err); break;
    case KIND_LOG:
    case N_KIND: break;
    }
    if (ok)
        return journal_commit(f->journal, err);
    journal_rollback(f->journal);
    return false;
}
