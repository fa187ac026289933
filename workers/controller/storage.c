/* The disk under the run.
 *
 * The journal's log is folded by a thread of the journal; the process that prevents this is named here, long before the disk is full.
 *
 * A group is in the rollout file for good before the journal names it, also when the power fails. Waiting for the disk would hold up
 * the loop, so a thread of this file syncs: what has been appended waits in a queue, as its message, until the thread says that the
 * file is on disk up to there; then the group is noted and answered (group_note). One sync serves all that came meanwhile. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"
#include "protocol/run/journal_wal.h"
#include "workers/controller/amending.h"
#include "workers/controller/controller.h"
#include "workers/controller/groups.h"

#define LOOK_MS 1000
#define LOG_TOLD_BYTES ((int64_t)32 << 20)    // twice what it is cut at: a reader is in the way; an alert says so again at each doubling
#define LOG_MAX_BYTES ((int64_t)4 << 30)      // tens of thousands of steps

struct storage {
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;    // guards: wanted, synced, failed, stop
    pthread_cond_t wake;
    int64_t wanted, synced;    // bytes of the rollout file
    struct error failed;       // code ERR_NONE: it has not
    bool stop;
    struct controller *c;
    /* the loop's own */
    struct unsynced *first, **last;
    int64_t looked_ms;       // at the journal's log
    int64_t told_bytes;      // how long that was when an alert said so; 0: none did
    bool fold_told;          // that it cannot be folded
    bool ship_told;          // that no copy of it can be made
    double disk_told_gib;    // free when an alert said so; 0: none did
    int reader_pid;          // that read it at the last look; 0: nobody did
};
struct unsynced {
    struct unsynced *next;
    struct request *request;    // NULL: an operator's change of a group
    int64_t end, item;          // of the file, when its record is there
    struct group_summary sum;
    struct buf message;
};

/* ---- the journal's log ---- */

int64_t storage_due(const struct controller *c)
{
    return run_is_over(c) ? INT64_MAX : c->storage->looked_ms + LOOK_MS;
}

/* Free space below the setting begins an alert, and again at each halving; it is quiet again a tenth above. A disk that is full fails the
 * run where it writes (ERR_IO), so this is the warning before. */
static void disk_look(struct controller *c)
{
    struct storage *s = c->storage;
    const char *const places[] = { c->process.run_dir, c->config.save_dir, c->config.rollout_save_dir };
    double least = INFINITY, limit = c->config.disk_alert_gib;
    const char *where = "";
    char text[640];
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        struct statvfs fs;
        double free_gib = places[i][0] && statvfs(places[i], &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize / (1 << 30) : INFINITY;
        if (free_gib < least) {
            least = free_gib;
            where = places[i];
        }
    }
    if (!(limit > 0) || least > limit * 1.1)
        s->disk_told_gib = 0;
    if (!(least < limit) || (s->disk_told_gib > 0 && least > s->disk_told_gib / 2))
        return;
    s->disk_told_gib = least;
    snprintf(text, sizeof text, "the disk of '%.400s' has %.3g GiB free; make room, or set save_interval, keep_checkpoints or save_dir",
             where, least);
    event_add(c, "alert", "controller", text, "");
}

void storage_tick(struct controller *c)
{
    struct journal_wal wal;
    struct error err;
    char text[640];
    int64_t now = clock_ms();
    if (now < storage_due(c))
        return;
    c->storage->looked_ms = now;
    disk_look(c);
    bool folds = journal_folds(c->journal, &err);
    if (!folds && !c->storage->fold_told)
        event_add(c, "alert", "controller", err.text, "");
    c->storage->fold_told = !folds;
    bool ships = journal_ships(c->journal, &err);
    if (!ships && err.code == ERR_EXISTS)
        run_fail(c, "%s", err.text);
    else if (!ships && !c->storage->ship_told)
        event_add(c, "alert", "controller", err.text, "");
    c->storage->ship_told = !ships;
    journal_wal_look(c->process.run_dir, c->storage->reader_pid, &wal);
    bool stays = wal.reader_pid && wal.reader_pid == c->storage->reader_pid;    // others read for a moment, and are in nobody's way
    c->storage->reader_pid = wal.reader_pid;
    if (wal.wal_bytes < LOG_TOLD_BYTES) {
        c->storage->told_bytes = 0;
    } else if (wal.wal_bytes >= LOG_MAX_BYTES) {
        run_fail(c,
                 "the journal's log '%.400s/journal.db-wal' has %" PRId64 " MiB and cannot be folded: %s has been reading it all the "
                 "time; end that, then go on with --resume",
                 c->process.run_dir, wal.wal_bytes >> 20, wal.reader_pid ? wal.reader : "a process");
    } else if (stays && wal.wal_bytes >= 2 * c->storage->told_bytes) {
        snprintf(text, sizeof text,
                 "the journal's log has %" PRId64 " MiB and cannot be folded: %s has been reading it all the time; end that",
                 wal.wal_bytes >> 20, wal.reader);
        event_add(c, "alert", "controller", text, "");
        c->storage->told_bytes = wal.wal_bytes;
    }
}

/* ---- groups on their way to the disk ---- */

static void *sync_run(void *arg)
{
    struct storage *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->wanted <= s->synced || s->failed.code != ERR_NONE) {
            pthread_cond_wait(&s->wake, &s->lock);    // no limit: the loop asks or ends it
            continue;
        }
        int64_t wanted = s->wanted;
        struct error err = { 0 };
        pthread_mutex_unlock(&s->lock);
        bool ok = rollout_file_sync(s->c->rollouts, &err);
        pthread_mutex_lock(&s->lock);
        if (ok)
            s->synced = wanted;
        else
            s->failed = err;
        process_wake(&s->c->process);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool storage_open(struct controller *c, struct error *err)
{
    struct storage *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
    s->c = c;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->wake);
    s->runs = thread_start(&s->thread, sync_run, s) == 0;
    c->storage = s;
    return s->runs || error_set(err, ERR_NO_MEMORY, "cannot start the thread that syncs the rollouts");
}

static struct unsynced *queue_take(struct storage *s)
{
    struct unsynced *u = s->first;
    s->first = u->next;
    if (!s->first)
        s->last = &s->first;
    return u;
}

void storage_close(struct controller *c)
{
    struct storage *s = c->storage;
    if (!s)
        return;
    if (s->runs) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    while (s->first) {    // never acknowledged: their worker sends them to the next controller
        struct unsynced *u = queue_take(s);
        if (u->request)
            request_drop(u->request);
        buf_release(&u->message);
        free(u);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
    c->storage = NULL;
}

bool storage_put(struct controller *c, struct request *r, int64_t item, const struct group_summary *sum, const void *data, size_t len,
                 struct error *err)
{
    struct storage *s = c->storage;
    const struct unsynced *same = r ? s->first : NULL;
    while (same && (same->item != item || !same->request))
        same = same->next;
    struct unsynced *u = calloc(1, sizeof *u);
    if (!u || !buf_add(&u->message, data, len)) {
        free(u);
        return error_set(err, ERR_NO_MEMORY, "no memory for group %" PRId64, item);
    }
    u->item = item;
    u->request = r;
    u->sum = same ? same->sum : *sum;
    if (!same && !rollout_file_append(c->rollouts, data, len, &u->sum.file_offset, &u->sum.file_bytes, err)) {
        buf_release(&u->message);
        free(u);
        return false;
    }
    u->end = u->sum.file_offset + u->sum.file_bytes;
    *s->last = u;
    s->last = &u->next;
    pthread_mutex_lock(&s->lock);
    s->wanted = MAX(s->wanted, u->end);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return true;
}

bool storage_holds(const struct controller *c, int64_t item)
{
    const struct unsynced *u = c->storage->first;
    while (u && u->item != item)
        u = u->next;
    return u != NULL;
}

void storage_note(struct controller *c)
{
    struct storage *s = c->storage;
    pthread_mutex_lock(&s->lock);
    int64_t synced = s->synced;
    struct error failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    if (failed.code != ERR_NONE)
        run_fail(c, "cannot keep a rollout group: %s", failed.text);
    while (s->first && (s->first->end <= synced || failed.code != ERR_NONE)) {
        struct unsynced *u = queue_take(s);
        struct msg_in in;
        struct error err;
        if (!u->request) {
            if (failed.code == ERR_NONE)
                amend_note(c, u->item, &u->sum);
        } else if (failed.code != ERR_NONE) {
            refuse_later(c, u->request, &failed);
        } else if (!msg_read_request(&in, u->message.data, u->message.len, &err)) {
            refuse_later(c, u->request, &err);
        } else {
            group_note(c, u->request, &in, &u->sum, u->message.data, u->message.len);
            msg_in_release(&in);
        }
        buf_release(&u->message);
        free(u);
    }
}
