#include "workers/harness/player.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/log.h"

#define SAID_MAX 65536    // bytes of its output that are kept

extern char **environ;

static const char *const names[] = { "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "RC_SESSION_DIR" };
struct given {
    char **env;                        // ours without these names, then these; for free
    char *entry[ARRAY_SIZE(names)];    // "NAME=value"; owned
};

static void given_free(struct given *g)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        free(g->entry[i]);
    free(g->env);
}

static bool is_given(const char *entry)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0 && entry[strlen(names[i])] == '=')
            return true;
    return false;
}

static bool given_make(struct given *g, const struct player_order *o, struct error *err)
{
    const char *const value[] = { o->url, o->key, o->model, o->dir };
    size_t n = 0;
    *g = (struct given){ 0 };
    while (environ[n])
        n++;
    g->env = calloc(n + ARRAY_SIZE(names) + 1, sizeof *g->env);
    bool ok = g->env != NULL;
    size_t at = 0;
    for (size_t i = 0; ok && i < n; i++)
        if (!is_given(environ[i]))
            g->env[at++] = environ[i];
    for (size_t i = 0; ok && i < ARRAY_SIZE(names); i++) {
        size_t size = strlen(names[i]) + strlen(value[i]) + 2;
        ok = (g->entry[i] = malloc(size)) != NULL;
        if (ok) {
            snprintf(g->entry[i], size, "%s=%s", names[i], value[i]);
            g->env[at++] = g->entry[i];
        }
    }
    if (!ok)
        given_free(g);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for a session's program");
}

/* A file in memory with the session's line: unlike a pipe it takes a row of any length, whether the program reads it or not. */
static int input_open(const char *text, struct error *err)
{
    int fd = memfd_create("rollcall-session", MFD_CLOEXEC);
    size_t len = strlen(text), done = 0;
    while (fd >= 0 && done <= len) {
        ssize_t n = done < len ? write(fd, text + done, len - done) : write(fd, "\n", 1);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (fd >= 0 && done == len + 1 && lseek(fd, 0, SEEK_SET) == 0)
        return fd;
    error_errno(err, "cannot write a session's input");
    fd_close(&fd);
    return -1;
}

bool player_runs(const struct player *l)
{
    return l->leash.pid != 0;
}

bool player_start(struct player *l, const struct player_order *o, struct error *err)
{
    struct given given = { 0 };
    int out[2] = { -1, -1 }, in = -1;
    char name[512];
    bool ok = false, made = false;
    snprintf(name, sizeof name, "the harness '%.400s'", o->command);
    l->out = -1;
    buf_clear(&l->said);
    TRY(given_make(&given, o, err));
    TRY((in = input_open(o->input, err)) >= 0);
    if (pipe2(out, O_CLOEXEC) != 0) {
        error_errno(err, "cannot make a pipe of %s", name);
        goto out;
    }
    TRY(!o->dir[0] || dir_make(o->dir, 0700, err));
    made = o->dir[0];
    TRY(leash_start(&l->leash, o->command, in, out[1], o->errors, given.env, name, err));
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    l->out = out[0];
    out[0] = -1;
    snprintf(l->dir, sizeof l->dir, "%s", o->dir);
    ok = true;
out:
    fd_close(&in);
    for (int i = 0; i < 2; i++)
        fd_close(&out[i]);
    if (given.env)
        given_free(&given);
    if (!ok && made)
        rmdir(o->dir);
    return ok;
}

void player_read(struct player *l)
{
    for (int i = 0; l->out >= 0 && i < 64; i++) {    // the rest next time: another program may wait
        char *to = buf_reserve(&l->said, SAID_MAX);
        ssize_t n = to ? read(l->out, to, SAID_MAX) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            fd_close(&l->out);
            return;
        }
        l->said.len += (size_t)n;
        if (l->said.len > SAID_MAX) {
            size_t old = l->said.len - SAID_MAX;
            memmove(l->said.data, l->said.data + old, SAID_MAX);
            l->said.len = SAID_MAX;
        }
        l->said.data[l->said.len] = 0;
    }
}

int player_end(struct player *l, int64_t wait_ms)
{
    struct error err;
    if (player_runs(l))
        leash_end(&l->leash, wait_ms);
    player_read(l);
    fd_close(&l->out);
    if (l->dir[0] && path_is_dir(l->dir) && !dir_remove(l->dir, &err))
        log_warn("a session's folder stays: %s", err.text);
    l->dir[0] = 0;
    return l->leash.status;
}

const char *player_last_line(struct player *l)
{
    size_t end = l->said.len;
    while (end > 0 && strchr(" \t\r\n", l->said.data[end - 1]))
        end--;
    if (end == 0)
        return "";
    l->said.data[end] = 0;
    l->said.len = end;
    const char *line = memrchr(l->said.data, '\n', end);
    return line ? line + 1 : l->said.data;
}

void player_release(struct player *l)
{
    fd_close(&l->out);
    buf_release(&l->said);
}
