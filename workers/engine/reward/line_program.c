/* line_program.c - see line_program.h; how the lines are told apart */
#include "workers/engine/reward/line_program.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/engine/reward/leash.h"

#define LINE_MAX_BYTES (1u << 20)    // of an answer
#define END_MS 1000                  // time for a program to end after its input is closed
#define SKIPPED_MAX 1000             // lines skipped while waiting for one answer

struct line_program {
    const char *what;
    char *command;
    double timeout_s;
    const atomic_bool *stop;    // questions are given up when it is true; borrowed, or NULL
    struct leash leash;
    int errors;                    // for its standard error; 0: ours
    int to, from;                  // our ends of the pipes, non-blocking; -1: not running
    struct buf request, answer;    // answer keeps what was read beyond a line
    bool request_ended;
    int64_t id;
    int64_t n_start, n_late, n_stray, n_mismatch;    // starts, and lines of each kind; counted for the log
};

bool is_worth_a_line(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

void line_program_stop(struct line_program *p, int64_t wait_ms)
{
    fd_close(&p->to);
    fd_close(&p->from);
    buf_clear(&p->answer);
    leash_end(&p->leash, wait_ms);
}

static bool line_program_start(struct line_program *p, struct error *err)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 };
    char name[512];
    bool ok = false;
    snprintf(name, sizeof name, "the %s '%.400s'", p->what, p->command);
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        error_errno(err, "cannot make the pipes of %s", name);
        goto out;
    }
    TRY(leash_start(&p->leash, p->command, in[0], out[1], p->errors, NULL, name, err));
    p->to = in[1];
    p->from = out[0];
    in[1] = out[0] = -1;
    fcntl(p->to, F_SETFL, O_NONBLOCK);
    fcntl(p->from, F_SETFL, O_NONBLOCK);
    p->n_start++;
    if (p->n_start > 1 && is_worth_a_line(p->n_start))
        log_warn("%s '%s' was restarted (%" PRId64 ")", p->what, p->command, p->n_start);
    ok = true;
out:
    for (int i = 0; i < 2; i++) {
        fd_close(&in[i]);
        fd_close(&out[i]);
    }
    return ok;
}

/* Write what is left of the request and read one line, until end. On failure ERR_TIMEOUT, ERR_CLOSED or ERR_FULL; then
 * the program must be stopped. */
static bool line_exchange(struct line_program *p, size_t *sent, int64_t end, size_t *line_len, struct error *err)
{
    for (;;) {
        const char *newline = memchr(buf_text(&p->answer), '\n', p->answer.len);
        if (newline) {
            *line_len = (size_t)(newline - p->answer.data);
            return true;
        }
        if (p->answer.len >= LINE_MAX_BYTES)
            return error_set(err, ERR_FULL, "a line of more than %u bytes", LINE_MAX_BYTES);
        int64_t left = end - clock_ms();
        if (left <= 0)
            return error_set(err, ERR_TIMEOUT, "no answer within %g s", p->timeout_s);
        if (p->stop && atomic_load(p->stop))
            return error_set(err, ERR_CLOSED, "this process ends");
        struct pollfd fds[2] = { { .fd = p->from, .events = POLLIN }, { .fd = *sent < p->request.len ? p->to : -1, .events = POLLOUT } };
        if (poll(fds, 2, (int)MIN(left, 1000)) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for the %s", p->what);
        if (fds[1].revents) {
            ssize_t n = write(p->to, p->request.data + *sent, p->request.len - *sent);
            if (n > 0)
                *sent += (size_t)n;
            else if (n < 0 && errno != EAGAIN && errno != EINTR)
                return error_set(err, ERR_CLOSED, "it ended");
        }
        if (fds[0].revents) {
            char *to = buf_reserve(&p->answer, 65536);
            if (!to)
                return error_set(err, ERR_NO_MEMORY, "no memory for its answer");
            ssize_t n = read(p->from, to, 65536);
            if (n == 0)
                return error_set(err, ERR_CLOSED, "it ended");
            p->answer.len += n > 0 ? (size_t)n : 0;
        }
    }
}

/* The meaning of a line from the program, by its id. */
enum line_kind {
    LINE_ANSWER,
    LINE_LATE,
    LINE_STRAY,
    LINE_MISMATCH,
};
static enum line_kind line_kind(const struct line_program *p, const json_t *o)
{
    const json_t *id = json_object_get(o, "id");
    if (!json_is_integer(id)) {
        static const char *const meant[] = { "reward", "rewards", "scope", "error", "observation", "done" };
        for (size_t i = 0; i < ARRAY_SIZE(meant); i++)
            if (id || json_object_get(o, meant[i]))
                return LINE_MISMATCH;
        return LINE_STRAY;
    }
    json_int_t n = json_integer_value(id);
    return n == p->id ? LINE_ANSWER : n > 0 && n < p->id ? LINE_LATE : LINE_MISMATCH;
}

/* Count a line that is not the answer and say so in the log. */
static void line_count(struct line_program *p, enum line_kind kind)
{
    static const char *const what[] = {
        [LINE_LATE] = "skipped an answer to an earlier id",
        [LINE_STRAY] = "skipped a line that is not an answer",
        [LINE_MISMATCH] = "starting it again after an answer to an id that was not asked",
    };
    int64_t *n = kind == LINE_LATE ? &p->n_late : kind == LINE_STRAY ? &p->n_stray : &p->n_mismatch;
    ++*n;
    if (is_worth_a_line(*n))
        log_warn("%s '%s': %s, while %" PRId64 " was asked (%" PRId64 " so far): %.200s", p->what, p->command, what[kind], p->id, *n,
                 p->answer.data);
}

/* Read lines until one is the answer. On failure as line_exchange, and ERR_DATA. */
static bool answer_get(struct line_program *p, json_t **answer, struct error *err)
{
    int64_t end = clock_ms() + (int64_t)(p->timeout_s * 1000);
    size_t sent = 0, len = 0;
    for (int n_skipped = 0;;) {
        if (!line_exchange(p, &sent, end, &len, err))
            return false;
        p->answer.data[len] = 0;
        json_t *o = json_text_read(p->answer.data, len, 0, NULL);
        enum line_kind kind = line_kind(p, o);
        if (kind != LINE_ANSWER)
            line_count(p, kind);
        p->answer.len -= len + 1;
        memmove(p->answer.data, p->answer.data + len + 1, p->answer.len + 1);
        if (kind == LINE_ANSWER) {
            *answer = o;
            return true;
        }
        json_decref(o);
        if (kind == LINE_MISMATCH)
            return error_set(err, ERR_DATA, "an answer to what was not asked");
        if (++n_skipped == SKIPPED_MAX)
            return error_set(err, ERR_DATA, "%d lines, but no answer", SKIPPED_MAX);
    }
}

struct buf *line_program_question(struct line_program *p)
{
    buf_clear(&p->request);
    buf_fmt(&p->request, "{\"id\":%" PRId64, ++p->id);
    p->request_ended = false;
    return &p->request;
}

bool line_program_ask(struct line_program *p, json_t **answer, struct error *err)
{
    if (!p->request_ended)
        buf_add(&p->request, "}\n", 2);
    p->request_ended = true;
    if (p->request.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for a question to the %s", p->what);
    if (!line_program_runs(p) && !line_program_start(p, err))
        return false;
    if (answer_get(p, answer, err))
        return true;
    line_program_stop(p, err->code == ERR_CLOSED ? END_MS : 0);
    return false;
}

void line_program_stop_by(struct line_program *p, const atomic_bool *stop)
{
    p->stop = stop;
}

bool line_program_runs(const struct line_program *p)
{
    return p->leash.pid != 0;
}

int64_t line_program_starts(const struct line_program *p)
{
    return p->n_start;
}

int64_t line_program_strays(const struct line_program *p)
{
    return p->n_stray;
}

void line_program_free(struct line_program *p)
{
    if (!p)
        return;
    line_program_stop(p, END_MS);
    buf_release(&p->request);
    buf_release(&p->answer);
    free(p->command);
    free(p);
}

struct line_program *line_program_new(const char *what, const char *command, double timeout_s, int errors, struct error *err)
{
    struct line_program *p = calloc(1, sizeof *p);
    char *copy = strdup(command);
    if (!p || !copy) {
        error_set(err, ERR_NO_MEMORY, "no memory for a %s", what);
        free(p);
        free(copy);
        return NULL;
    }
    *p = (struct line_program){ .what = what,
                                .command = copy,
                                .to = -1,
                                .from = -1,
                                .errors = errors,
                                .leash = { .end = -1 },
                                .timeout_s = timeout_s > 0 ? timeout_s : LINE_PROGRAM_LATE_S,
                                .answer = { .max = LINE_MAX_BYTES + 65537 } };
    if (!line_program_start(p, err)) {
        line_program_free(p);
        return NULL;
    }
    return p;
}
