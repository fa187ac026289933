/* What a run that is resumed finds: its journal, which must know what the run has saved, and what it was begun with, unchanged. Else a
 * run would begin again at step 0 over its own checkpoints, or go on with other data, without a word. */
#include "console/train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "protocol/base/file.h"
#include "protocol/run/journal.h"
#include "protocol/run/run_owner.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/trainer/checkpoint.h"

struct journal_seen {
    int64_t last_step, last_checkpoint, n_incarnation;    // -1: none
    bool readable;
    struct error why;            // it is not
};

static bool checkpoint_seen(void *arg, const struct journal_checkpoint *k)
{
    struct journal_seen *s = arg;
    s->last_checkpoint = MAX(s->last_checkpoint, k->step);
    return true;
}

static bool incarnation_seen(void *arg, UNUSED int64_t incarnation, UNUSED int64_t from_step)
{
    ((struct journal_seen *)arg)->n_incarnation++;
    return true;
}

/* What the journal knows; identity, when it is readable: the hashes of what the run was begun with, NULL: not in it. */
static void journal_see(const struct train *t, struct journal_seen *s, json_t **identity)
{
    struct buf text = BUF_INIT;
    bool found = false;
    json_error_t je;
    *s = (struct journal_seen){ .last_step = -1, .last_checkpoint = -1 };
    *identity = NULL;
    struct journal *j = journal_open_reader(t->run_dir, &s->why);
    s->readable = j && journal_last_step(j, &s->last_step, &s->why) && journal_checkpoints_read(j, checkpoint_seen, s, &s->why)
        && journal_incarnations_read(j, incarnation_seen, s, &s->why) && journal_value_get(j, "identity", &text, &found, &s->why);
    if (s->readable && found)
        *identity = json_loadb(text.data, text.len, 0, &je);
    journal_close(j);
    buf_release(&text);
}

/* The journal and what lies in the run's folders belong together. */
static bool journal_fits(const struct train *t, const struct journal_seen *s, struct error *err)
{
    char folder[PATH_MAX], path[PATH_MAX], id[RUN_ID_BYTES], why[300];
    int64_t newest;
    struct stat st;
    bool fits = t->config.save_dir[0] ? snprintf(folder, sizeof folder, "%s", t->config.save_dir) < (int)sizeof folder
                                      : path_join(folder, sizeof folder, t->run_dir, "checkpoints");
    fits = fits && (t->config.rollout_save_dir[0] ? path_join(path, sizeof path, t->config.rollout_save_dir, "groups.zst")
                                                  : path_join(path, sizeof path, t->run_dir, "rollouts/groups.zst"));
    if (!fits)
        return error_set(err, ERR_USAGE, "the path of the run '%s' is too long", t->run_dir);
    if (!run_id_read(t->run_dir, id, err) || !checkpoint_last(folder, id, &newest, err))
        return false;
    if (s->readable && s->n_incarnation > 0)
        snprintf(why, sizeof why, "knows nothing beyond step %" PRId64, MAX(s->last_step, (int64_t)0));
    else
        snprintf(why, sizeof why, "%s%.250s", s->readable ? "is empty" : "cannot be used: ", s->readable ? "" : s->why.text);
    if (newest > MAX(s->last_step, s->last_checkpoint))
        return error_set(err, ERR_DATA, "the journal of '%s' %s, but '%s' holds a checkpoint of step %" PRId64 ", which the run would write over; "
                         "put journal.db and journal.db-wal back as they were, or begin a new run from it: --checkpoint-path '%s/step-%06" PRId64 "'",
                         t->run_dir, why, folder, newest, folder, newest);
    if (s->n_incarnation == 0 && stat(path, &st) == 0 && st.st_size > 0)
        return error_set(err, ERR_DATA, "the journal of '%s' %s, but '%s' holds rollouts, to which the run would append those of a new beginning; "
                         "put journal.db and journal.db-wal back as they were, or begin a new run", t->run_dir, why, path);
    return true;
}

/* Is name among the words of list? */
static bool is_listed(const char *list, const char *name, size_t len)
{
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL) {
        at += strspn(at, " ");
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || !at[len]))
            return true;
    }
    return false;
}

static bool identity_check(const struct train *t, const json_t *was, struct error *err)
{
    char changed[1024];
    if (!identity_changed(was, t->identity, changed, sizeof changed))
        return true;
    bool accepted = true;
    for (const char *at = changed; *at && accepted; at += strcspn(at, ","), at += strspn(at, ", "))
        accepted = is_listed(t->accept, at, strcspn(at, ","));
    return accepted || error_set(err, ERR_DATA, "%s: not what the run '%s' was begun with (dataset '%.200s', model '%.200s'); put back what it was, "
                                 "or, if that is wanted, go on with --accept-changed '%s', which is noted in the journal", changed, t->run_dir,
                                 t->config.dataset, t->config.model, changed);
}

bool kept_journal_check(const struct train *t, struct error *err)
{
    struct journal_seen seen;
    json_t *was;
    journal_see(t, &seen, &was);
    json_decref(was);
    return journal_fits(t, &seen, err);
}

bool kept_check(const struct train *t, struct error *err)
{
    struct journal_seen seen;
    json_t *was;
    journal_see(t, &seen, &was);
    bool ok = (was || identity_read(t->run_dir, &was, err)) && (!was || identity_check(t, was, err));
    json_decref(was);
    return ok;
}
