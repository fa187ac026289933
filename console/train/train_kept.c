/* Checks of a resumed run: its journal must know what the run has saved, and what it began with must be unchanged. Otherwise a run
 * could silently start again at step 0 over its own checkpoints, or continue with other data. */
#include "console/train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/journal.h"
#include "protocol/record/journal_home.h"
#include "protocol/record/journal_rebuild.h"
#include "protocol/record/settings_kept.h"
#include "protocol/run/resume_flags.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_owner.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/trainer/checkpoint.h"

struct journal_seen {
    int64_t furthest_step;                     // of any incarnation: one that was rolled back has saved checkpoints, too; -1: not read
    int64_t last_checkpoint, n_incarnation;    // -1, 0: none
    bool readable;
    struct error why;    // why it is not readable
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

/* What the journal knows; identity, when it is readable: the hashes of what the run began with, NULL: not in it. */
static void journal_see(const struct train *t, struct journal_seen *s, json_t **identity)
{
    struct buf text = BUF_INIT;
    bool found = false;
    json_error_t je;
    *s = (struct journal_seen){ .furthest_step = -1, .last_checkpoint = -1 };
    *identity = NULL;
    struct journal *j = journal_open_reader(t->run_dir, &s->why);
    s->readable = j && journal_furthest_step(j, &s->furthest_step, &s->why) && journal_checkpoints_read(j, checkpoint_seen, s, &s->why)
                  && journal_incarnations_read(j, incarnation_seen, s, &s->why) && journal_value_get(j, "identity", &text, &found, &s->why);
    if (s->readable && found)
        *identity = json_text_read(text.data, text.len, 0, &je);
    journal_close(j);
    buf_release(&text);
}

/* The run's folder of checkpoints. */
static bool folder_find(const struct train *t, char folder[PATH_MAX], struct error *err)
{
    bool fits = t->config.save_dir[0] ? snprintf(folder, PATH_MAX, "%s", t->config.save_dir) < PATH_MAX
                                      : path_join(folder, PATH_MAX, t->run_dir, "checkpoints");
    return fits || error_set(err, ERR_USAGE, "the path of the run '%s' is too long", t->run_dir);
}

/* Check that the journal and the contents of the run's folders belong together. */
static bool journal_fits(const struct train *t, const struct journal_seen *s, struct error *err)
{
    char folder[PATH_MAX], path[PATH_MAX], id[RUN_ID_BYTES], why[300];
    int64_t newest;
    struct stat st;
    if (!folder_find(t, folder, err))
        return false;
    if (!run_config_groups_path(&t->config, t->run_dir, path, sizeof path))
        return error_set(err, ERR_USAGE, "the path of the run '%s' is too long", t->run_dir);
    if (!run_id_read(t->run_dir, id, err) || !checkpoint_last(folder, id, &newest, err))
        return false;
    if (s->readable && s->n_incarnation > 0)
        snprintf(why, sizeof why, "knows nothing after step %" PRId64, MAX(s->furthest_step, (int64_t)0));
    else
        snprintf(why, sizeof why, "%s%.250s", s->readable ? "is empty" : "cannot be used: ", s->readable ? "" : s->why.text);
    if (newest > MAX(s->furthest_step, s->last_checkpoint))
        return error_set(
            err, ERR_DATA,
            "the journal of '%s' %s, but '%s' holds a checkpoint of step %" PRId64 ", which the run would overwrite; "
            "put journal.db and journal.db-wal back as they were, or add --from-checkpoint, which continues from it without the journal "
            "and says what is lost, or start a new run from it: --checkpoint-path '%s/step-%06" PRId64 "'",
            t->run_dir, why, folder, newest, folder, newest);
    if (s->n_incarnation == 0 && stat(path, &st) == 0 && st.st_size > 0)
        return error_set(err, ERR_DATA,
                         "the journal of '%s' %s, but '%s' holds rollouts, to which the run would append new ones from step 0 on; "
                         "put journal.db and journal.db-wal back as they were, or start a new run",
                         t->run_dir, why, path);
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
    return accepted
           || error_set(err, ERR_DATA,
                        "%s: not what the run '%s' began with (dataset '%.200s', model '%.200s'); put back what it was, "
                        "or, if the change is intended, continue with --accept-changed '%s', which is noted in the journal",
                        changed, t->run_dir, t->config.dataset, t->config.model, changed);
}

bool kept_journal_take(const struct train *t, struct error *err)
{
    struct error busy;
    char id[RUN_ID_BYTES], folder[PATH_MAX];
    int64_t step = 0;
    bool taken = false;
    if (t->from_checkpoint || !journal_is_elsewhere(t->run_dir))
        return true;
    int fd = run_lock_take(t->run_dir, &busy);
    if (fd < 0)
        return error_set(err, ERR_EXISTS, "the run '%s' is going on another machine, where its journal is; end it there first", t->run_dir);
    bool ok = run_id_read(t->run_dir, id, err) && journal_home_take(t->run_dir, t->config.journal_dir, id, &taken, &step, err);
    if (ok && taken) {
        fprintf(stderr,
                "note: the journal of '%s' was on another machine; the run goes on from its snapshot, which knows step %" PRId64 "\n",
                t->run_dir, step);
        ok = folder_find(t, folder, err) && checkpoint_set_aside(folder, id, step, err);    // of later steps, which are made again
    }
    close(fd);
    return ok;
}

bool kept_journal_check(const struct train *t, struct error *err)
{
    struct journal_seen seen;
    json_t *was;
    journal_see(t, &seen, &was);
    json_decref(was);
    struct error lost;
    bool fits = journal_fits(t, &seen, t->from_checkpoint ? &lost : err);
    if (fits && t->from_checkpoint)
        return error_set(err, ERR_EXISTS, "the journal of '%s' exists and knows what the run has saved; omit --from-checkpoint",
                         t->run_dir);
    return fits || t->from_checkpoint;
}

static bool pending_see(void *arg, const char *name, UNUSED const char *before, UNUSED const char *value, struct error *err)
{
    const struct knob *k = knob_find(name, err);
    if (k)
        ((bool *)arg)[k - knobs] = true;
    return k != NULL;
}

bool kept_settings_check(struct train *t, const struct run_config *before, struct error *err)
{
    struct error none;
    struct buf text = BUF_INIT;
    bool meant[KNOB_MAX] = { false };
    const char *first = NULL;
    struct journal *j = t->from_checkpoint ? NULL : journal_open_reader(t->run_dir, &none);
    bool ok = !j || settings_kept_read(j, &t->settings, err);
    journal_close(j);
    ok = ok && resume_flags_read(t->run_dir, pending_see, meant, err);
    for (int i = 0; ok && i < n_knobs; i++)
        if (!meant[i] && !t->value[i] && setting_differs(t->settings, &knobs[i], before)) {
            setting_tell(&text, t->settings, &knobs[i], before);
            first = first ? first : knobs[i].name;
        }
    if (ok && text.len && !is_listed(t->accept, "run.yaml", strlen("run.yaml")))
        ok = error_set(
            err, ERR_DATA,
            "'%s/run.yaml' is not what the run has written: %.600s; put it back, give what is meant with --resume (--%s ...), or "
            "take the file as it is with --accept-changed 'run.yaml', which is noted in the journal",
            t->run_dir, buf_text(&text), first);
    buf_release(&text);
    return ok;
}

bool kept_settings_note(struct train *t, const struct run_config *before, struct error *err)
{
    struct buf was = BUF_INIT, is = BUF_INIT;
    bool ok = true;
    for (int i = 0; ok && i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        const char *kept = json_string_value(json_object_get(t->settings, k->name)), *now = knob_text(k, &t->config, &is);
        kept = kept ? kept : knob_text(k, before, &was);
        if (!(t->value[i] && knob_is_live(k)) && strcmp(kept, now) != 0)
            ok = resume_flags_add(&t->flags, k->name, kept, now, err);
    }
    buf_release(&was);
    buf_release(&is);
    return ok;
}

bool kept_checkpoint_find(struct train *t, struct error *err)
{
    char folder[PATH_MAX], id[RUN_ID_BYTES];
    struct buf broken = BUF_INIT;
    bool ok = false;
    if (t->attached)
        return error_set(err, ERR_EXISTS,
                         "the run '%s' is still going, although its journal's file is gone; stop it ('rollcall ctl --run %s stop'), then "
                         "resume it with --from-checkpoint",
                         t->run_dir, t->run_dir);
    TRY(folder_find(t, folder, err) && run_id_read(t->run_dir, id, err));
    TRY(checkpoint_newest_whole(folder, id[0] ? id : NULL, t->kept_path, &t->kept_step, &broken, err));
    if (t->kept_step <= 0) {
        const char *text = buf_text(&broken);
        error_set(err, ERR_NOT_FOUND,
                  "'%s' holds no complete checkpoint of the run from which to rebuild its journal%s%.*s; put journal.db and "
                  "journal.db-wal back as they were, or start a new run",
                  folder, *text ? ": " : "", (int)strcspn(text, "\n"), text);
        goto out;
    }
    for (const char *at = buf_text(&broken); *at; at += strcspn(at, "\n") + 1)
        fprintf(stderr, "note: a broken checkpoint is skipped and moved aside: %.*s\n", (int)strcspn(at, "\n"), at);
    ok = true;
out:
    buf_release(&broken);
    return ok;
}

bool kept_rebuild(const struct train *t, struct error *err)
{
    char folder[PATH_MAX], id[RUN_ID_BYTES], aside[PATH_MAX];
    struct journal_seen seen;
    struct journal_rebuild r = {
        .run_dir = t->run_dir, .checkpoint = t->kept_path, .step = t->kept_step, .item = run_plan_item_after(&t->plan, t->kept_step)
    };
    json_t *was;
    journal_see(t, &seen, &was);    // the old journal may still have it
    bool ok = (was || identity_read(t->run_dir, &was, err)) && folder_find(t, folder, err) && run_id_read(t->run_dir, id, err)
              && checkpoint_set_aside(folder, id[0] ? id : NULL, t->kept_step, err);
    r.identity = was;
    ok = ok && journal_rebuild(&r, aside, err);
    json_decref(was);
    if (!ok)
        return false;
    fprintf(stderr, "note: the journal of '%s' is rebuilt from '%s'; the run continues after step %" PRId64 "\n", t->run_dir, t->kept_path,
            r.step);
    if (aside[0])
        fprintf(stderr, "note: the remains of the old journal are kept as '%s'\n", aside);
    fprintf(stderr, "note: lost: metrics of steps 1 to %" PRId64 ", and earlier evaluations and events\n", r.step);
    fprintf(stderr, "note: lost: steps after %" PRId64 ", which are repeated, but not with the same bytes\n", r.step);
    if (t->config.curriculum_levels > 1)
        fprintf(stderr, "note: lost: the level of the prompts, which begins at %" PRId64 " again (curriculum_start)\n",
                t->config.curriculum_start);
    fprintf(stderr, "note: lost: setting changes during the run; the values of run.yaml and of this command line apply\n");
    fprintf(stderr,
            "note: lost: the record of items; prompts continue at item %" PRId64
            ", as if no group had been filtered out; samples that were waiting "
            "are not trained on; they stay in the rollout file, to which new ones are appended\n",
            r.item);
    return true;
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
