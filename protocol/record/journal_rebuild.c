#include "protocol/record/journal_rebuild.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/journal.h"

/* The log is moved first: SQLite would replay a log left behind into the new journal. */
static const char *const parts[] = { "-wal", "-shm", "" };

static bool old_move(const char *run_dir, char *aside, struct error *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    bool taken = true;
    int n = 0;
    while (taken && n++ < 10000) {
        taken = false;
        for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
            if (snprintf(to, sizeof to, "%s/journal.db.lost-%d%s", run_dir, n, parts[i]) >= (int)sizeof to)
                return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
            taken = taken || path_exists(to);
        }
    }
    if (taken)
        return error_set(err, ERR_EXISTS, "'%s' holds too many journals that were moved aside; remove some", run_dir);
    aside[0] = 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        snprintf(from, sizeof from, "%.4000s/journal.db%s", run_dir, parts[i]);
        snprintf(to, sizeof to, "%.4000s/journal.db.lost-%d%s", run_dir, n, parts[i]);
        if (rename(from, to) == 0)
            snprintf(aside, PATH_MAX, "%s", to);
        else if (errno != ENOENT)
            return error_errno(err, "cannot move '%s' to '%s'", from, to);
    }
    return dir_sync(run_dir, err);
}

static bool number_put(struct journal *j, const char *name, int64_t v, struct error *err)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRId64, v);
    return journal_value_put(j, name, text, (size_t)n, err);
}

bool journal_rebuild(const struct journal_rebuild *r, char *aside, struct error *err)
{
    char text[400];
    bool ok = false;
    char *identity = r->identity ? json_text_dump(r->identity, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    int64_t incarnation;
    struct journal *j = NULL;
    if (!old_move(r->run_dir, aside, err))
        goto out;
    TRY(j = journal_open(r->run_dir, err));
    TRY(journal_begin(j, err));
    /* Above any number in the old journal: a run writes less than one row per millisecond on average. */
    TRY(journal_seq_begin(j, (int64_t)(clock_wall_s() * 1000), err));
    TRY((incarnation = journal_incarnation_begin(j, r->step, err)) > 0 && number_put(j, "incarnation", incarnation, err));
    TRY(number_put(j, REBUILD_STEP, r->step, err) && number_put(j, REBUILD_ITEM, r->item, err));
    TRY(!identity || journal_value_put(j, "identity", identity, strlen(identity), err));
    TRY(journal_checkpoint_put(j, r->step, r->checkpoint, "complete", NAN, NAN, err));
    snprintf(text, sizeof text, "the journal was lost and rebuilt from the checkpoint of step %" PRId64 "; items continue at %" PRId64,
             r->step, r->item);
    TRY(journal_event_add(j, incarnation, r->step, "alert", "train --from-checkpoint", text, "", err));
    ok = journal_commit(j, err);
out:
    journal_close(j);
    free(identity);
    return ok;
}
