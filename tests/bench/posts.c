/* posts.c - posted groups on the disk: the log of workers/atropos beside SQLite, and what a flipped bit costs either
 *
 * Each post is on the disk before the next one begins, as a server's answer promises. SQLite keeps a row per group, with a checksum, in
 * both of its journal modes that survive a power cut. Then a bit is flipped at many places in turn, and what can still be read is counted,
 * of groups whose checksum is right. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/mix64.h"
#include "tests/bench/bench.h"
#include "workers/atropos/atropos_log.h"

#define QUEUE 64    // groups that wait; older ones are handed out
#define FLIP_GROUPS 200
#define FLIP_BYTES 20000

struct posts {
    char dir[PATH_MAX - 300];
    int64_t n;
    struct scored **group;    // (n) owned
};
/* A place for posts. */
struct store {
    struct atropos_log *log;    // NULL: SQLite's
    sqlite3 *db;
    sqlite3_stmt *add, *drop;
};

static bool posts_make(struct posts *p, int64_t n, size_t len, struct error *err)
{
    char *text = malloc(len + 1);
    p->group = calloc((size_t)n, sizeof *p->group);
    for (int64_t i = 0; text && p->group && i < n; i++) {
        for (size_t k = 0; k < len; k++)
            text[k] = (char)('0' + mix64(((uint64_t)i << 32 | k) * MIX64_STEP) % 10);
        p->group[p->n] = scored_new(&(struct scored){ .id = i + 1, .n_seq = 8, .env_id = -1 }, text, len);
        p->n += p->group[p->n] != NULL;
    }
    free(text);
    return p->n == n || error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " groups", n);
}

static void posts_free(struct posts *p)
{
    for (int64_t i = 0; i < p->n; i++)
        scored_drop(p->group[i]);
    free(p->group);
}

/* ---- the log */
static bool any_json(UNUSED void *ctx, UNUSED const char *json, UNUSED size_t len, UNUSED struct error *err)
{
    return true;
}

static bool any_wants(UNUSED void *ctx, UNUSED int64_t id)
{
    return true;
}

static bool any_ready(UNUSED void *ctx, UNUSED struct error *err)
{
    return true;
}

static bool one_read(void *ctx, struct scored *g, UNUSED struct error *err)
{
    ++*(int64_t *)ctx;
    scored_drop(g);
    return true;
}

static bool post_read(void *ctx, struct scored **g, int64_t n, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!one_read(ctx, g[i], err))
            return false;
    return true;
}

static const struct atropos_reader counts = { any_json, any_wants, one_read, any_ready, post_read, any_json };

static bool log_begin(struct atropos_log *l, struct scored *const *live, int64_t n, struct error *err)
{
    struct buf state = BUF_INIT;
    buf_str(&state, "{}");
    bool ok = atropos_log_turn(l, &state, live, n, err);
    buf_release(&state);
    return ok;
}

/* ---- SQLite */
static bool sql(struct store *s, const char *text, struct error *err)
{
    return sqlite3_exec(s->db, text, NULL, NULL, NULL) == SQLITE_OK || error_set(err, ERR_IO, "%s: %s", text, sqlite3_errmsg(s->db));
}

static bool store_open(struct store *s, const char *dir, const char *mode, struct error *err)
{
    int64_t n = 0;
    char path[PATH_MAX], pragma[64];
    *s = (struct store){ 0 };
    if (!mode)
        return (s->log = atropos_log_open(dir, &counts, &n, err)) && log_begin(s->log, NULL, 0, err);
    snprintf(path, sizeof path, "%s/groups.db", dir);
    snprintf(pragma, sizeof pragma, "pragma journal_mode=%s", mode);
    if (!dir_make(dir, 0700, err))
        return false;
    if (sqlite3_open(path, &s->db) != SQLITE_OK)
        return error_set(err, ERR_IO, "cannot open '%s': %s", path, sqlite3_errmsg(s->db));
    if (!sql(s, pragma, err) || !sql(s, "pragma synchronous=full", err)
        || !sql(s, "create table groups(id integer primary key, crc integer, text blob)", err))
        return false;
    return (sqlite3_prepare_v2(s->db, "insert into groups values(?,?,?)", -1, &s->add, NULL) == SQLITE_OK
            && sqlite3_prepare_v2(s->db, "delete from groups where id=?", -1, &s->drop, NULL) == SQLITE_OK)
           || error_set(err, ERR_IO, "%s", sqlite3_errmsg(s->db));
}

static void store_close(struct store *s)
{
    atropos_log_close(s->log);
    sqlite3_finalize(s->add);
    sqlite3_finalize(s->drop);
    sqlite3_close(s->db);
}

static int64_t crc_of(const void *text, size_t len)
{
    return (int64_t)crc32(0, text, (uInt)len);
}

static bool step_sql(struct store *s, sqlite3_stmt *q, struct error *err)
{
    bool ok = sqlite3_step(q) == SQLITE_DONE || error_set(err, ERR_IO, "%s", sqlite3_errmsg(s->db));
    sqlite3_reset(q);
    return ok;
}

/* Post group i, and hand the oldest out when QUEUE wait. */
static bool store_post(struct store *s, const struct posts *p, int64_t i, struct error *err)
{
    const struct scored *g = p->group[i];
    if (s->log) {
        if (!atropos_log_post(s->log, &p->group[i], 1, err))
            return false;
        if (i >= QUEUE)
            atropos_log_left(s->log, p->group[i - QUEUE]);
        return !atropos_log_is_long(s->log) || log_begin(s->log, p->group + MAX(0, i - QUEUE + 1), MIN(i + 1, QUEUE), err);
    }
    sqlite3_bind_int64(s->add, 1, g->id);
    sqlite3_bind_int64(s->add, 2, crc_of(g->text, g->len));
    sqlite3_bind_blob64(s->add, 3, g->text, g->len, SQLITE_STATIC);
    if (!sql(s, "begin", err) || !step_sql(s, s->add, err))
        return false;
    sqlite3_bind_int64(s->drop, 1, i - QUEUE + 1);
    return step_sql(s, s->drop, err) && sql(s, "commit", err);
}

static bool rate(const struct posts *p, const char *mode, struct error *err)
{
    char dir[PATH_MAX - 64];
    struct store s;
    snprintf(dir, sizeof dir, "%s/rate-%s", p->dir, mode ? mode : "log");
    bool ok = store_open(&s, dir, mode, err);
    int64_t from = clock_ns();
    for (int64_t i = 0; ok && i < p->n; i++)
        ok = store_post(&s, p, i, err);
    double s_all = (double)(clock_ns() - from) / 1e9;
    store_close(&s);
    if (ok)
        printf("{\"bench\": \"posts\", \"store\": \"%s\", \"group_bytes\": %zu, \"posts_per_s\": %.0f}\n", mode ? mode : "log",
               p->group[0]->len, (double)p->n / s_all);
    return ok;
}

/* ---- a flipped bit */
static int64_t sql_readable(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    int64_t n = 0;
    bool ok = sqlite3_open(path, &db) == SQLITE_OK
              && sqlite3_prepare_v2(db, "select crc, text from groups where id=?", -1, &q, NULL) == SQLITE_OK;
    for (int64_t id = 1; ok && id <= FLIP_GROUPS; id++) {    // each by itself: the others may be well
        sqlite3_bind_int64(q, 1, id);
        if (sqlite3_step(q) == SQLITE_ROW)
            n += sqlite3_column_int64(q, 0) == crc_of(sqlite3_column_blob(q, 1), (size_t)sqlite3_column_bytes(q, 1));
        sqlite3_reset(q);
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static int64_t log_readable(const char *dir)
{
    struct error err;
    int64_t n = 0;
    atropos_log_close(atropos_log_open(dir, &counts, &n, &err));
    return n;
}

/* The files as they lie on the disk while they are in use, with one bit of `name` flipped: how many groups are still there. */
static bool flipped(const char *from, const char *to, const char *name, const char *mode, uint64_t where, int64_t *n, struct error *err)
{
    char a[PATH_MAX + 300], b[PATH_MAX + 300];
    DIR *d = opendir(from);
    bool ok = d && dir_make(to, 0700, err);
    for (const struct dirent *e; ok && (e = readdir(d));) {
        struct buf data = BUF_INIT;
        snprintf(a, sizeof a, "%s/%s", from, e->d_name);
        snprintf(b, sizeof b, "%s/%s", to, e->d_name);
        if (e->d_name[0] == '.' || strstr(e->d_name, "-shm"))
            continue;
        ok = file_read(&data, a, SIZE_MAX, err);
        if (ok && strcmp(e->d_name, name) == 0 && data.len > 0)
            data.data[where % data.len] ^= (char)(1 << (where >> 40) % 8);
        ok = ok && file_write(b, data.data, data.len, err);
        buf_release(&data);
    }
    if (d)
        closedir(d);
    snprintf(a, sizeof a, "%s/groups.db", to);
    if (ok)
        *n = mode ? sql_readable(a) : log_readable(to);
    struct error ignored;
    if (!dir_remove(to, &ignored))
        log_warn("%s", ignored.text);
    return ok;
}

static bool flips(const struct posts *p, const char *mode, const char *name, int64_t tries, struct error *err)
{
    char dir[PATH_MAX - 64], to[PATH_MAX - 64];
    struct store s = { 0 };
    struct posts few = { 0 };
    int64_t worst = 0, sum = 0, one = 0;
    snprintf(dir, sizeof dir, "%s/flip-%s-%s", p->dir, mode ? mode : "log", name);
    snprintf(to, sizeof to, "%s/copy", p->dir);
    bool ok = posts_make(&few, FLIP_GROUPS, FLIP_BYTES, err) && store_open(&s, dir, mode, err);
    ok = ok && (!mode || sql(&s, "pragma wal_autocheckpoint=0", err));
    for (int64_t i = 0; ok && i < few.n; i++) {
        if (s.log) {
            ok = atropos_log_post(s.log, &few.group[i], 1, err);
            continue;
        }
        sqlite3_bind_int64(s.add, 1, few.group[i]->id);
        sqlite3_bind_int64(s.add, 2, crc_of(few.group[i]->text, few.group[i]->len));
        sqlite3_bind_blob64(s.add, 3, few.group[i]->text, few.group[i]->len, SQLITE_STATIC);
        ok = step_sql(&s, s.add, err);
    }
    for (int64_t i = 0; ok && i < tries; i++) {
        ok = flipped(dir, to, name, mode, mix64((uint64_t)(i + 1) * MIX64_STEP), &one, err);
        worst = MAX(worst, FLIP_GROUPS - one);
        sum += FLIP_GROUPS - one;
    }
    store_close(&s);
    posts_free(&few);
    if (ok)
        printf("{\"bench\": \"flips\", \"store\": \"%s\", \"file\": \"%s\", \"groups\": %d, \"flips\": %" PRId64
               ", \"lost_worst\": %" PRId64 ", \"lost_mean\": %.2f}\n",
               mode ? mode : "log", name, FLIP_GROUPS, tries, worst, (double)sum / (double)tries);
    return ok;
}

bool bench_posts(int argc, char **argv, struct error *err)
{
    int64_t n = 2000, len = 200000, tries = 200;
    const char *dir = "/var/tmp";
    struct cli_option options[] = {
        { "groups", NULL, CLI_I64, &n, "N", "how many are posted (2000)" },
        { "bytes", NULL, CLI_I64, &len, "N", "of one (200000: about 8 x 2048 tokens)" },
        { "flips", NULL, CLI_I64, &tries, "N", "places at which a bit is flipped (200)" },
        { "dir", NULL, CLI_STR, &dir, "DIR", "on the disk that is measured (/var/tmp)" },
    };
    struct cli cli = { "bench posts", "Posts groups to the disk: into the server's log, and into SQLite.", NULL, options,
                       ARRAY_SIZE(options) };
    struct posts p = { 0 };
    struct error ignored;
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    snprintf(p.dir, sizeof p.dir, "%s/rc-posts-XXXXXX", dir);
    if (!mkdtemp(p.dir))
        return error_errno(err, "cannot make a folder in '%s'", dir);
    bool ok = posts_make(&p, n, (size_t)len, err) && rate(&p, NULL, err) && rate(&p, "wal", err) && rate(&p, "delete", err)
              && flips(&p, NULL, "00000001.log", tries, err) && flips(&p, "wal", "groups.db-wal", tries, err)
              && flips(&p, "delete", "groups.db", tries, err);
    posts_free(&p);
    return dir_remove(p.dir, &ignored) && ok;
}
