/* program.c - the reward kind "program:CMD": the user's own program, in any language, asked over a pipe
 *
 * CMD is run by /bin/sh and kept running. It reads one JSON object per line and writes one per line, and flushes:
 *     in   {"id": 7, "response": "...", "row": {the dataset's line}, "n_tok": 120, "finish": "stop" or "length"}
 *     out  {"id": 7, "reward": 0.5, "format_acc": 1, "ans_acc": 0, "rule": "a word on why"}
 *     or   {"id": 7, "error": "why there is no score"}
 * n_tok and finish are absent when unknown; an answer needs only id and reward; true and false count as 1 and 0. An
 * error, or no answer within the time limit, leaves the sample out of the group.
 *
 * One line too many must not shift all later answers by one, so each is compared with the id that was asked:
 *   - an answer to an earlier id, and a line that is not a JSON object (a stray print), are skipped and counted;
 *   - an object with an id that was never asked, or a reward without an id, shows that program and scorer are out of
 *     step: the program is killed and restarted, and asked once more if it had answered before.
 * The log says how many of each there were. A program that ends is restarted and asked once more; one that overruns its
 * time is killed with its process group and restarted for the next sample. It runs with the scorer's rights: it is the
 * user's own program and is not sandboxed. Its standard error goes to the scorer's log. Closing its input asks it to
 * end.
 *
 * The leader of its process group is a watcher: a shell that waits for the end of a pipe whose other end only the
 * scorer holds, and then kills the group. So nothing in the group outlives the scorer, however the scorer ends. Killing
 * the recorded group at the next start was considered, but `rollcall score` has no next start, and the group's number
 * may belong to other processes by then. */
#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/reward/kind.h"

#define LINE_MAX_BYTES (1u << 20)    // of an answer
#define END_MS 1000                  // time for a program to end after its input is closed
#define SKIPPED_MAX 1000             // lines skipped while waiting for one answer

struct program {
    char *command;
    double timeout_s;
    pid_t watcher;                 // leader of the process group; 0: not running
    pid_t pid;                     // of the shell that runs the command; 0: not running
    int leash;                     // the other end is the watcher's input, which only ever sees our end close
    int to, from;                  // our ends of the pipes, non-blocking; -1: not running
    struct buf request, answer;    // answer keeps what was read beyond a line
    int64_t id;
    int64_t n_start, n_late, n_stray, n_mismatch;    // starts, and lines of each kind; counted for the log
};

static void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* True for the 1st, 2nd, 4th, 8th and so on, so that a fault of every sample does not fill the log. */
static bool is_worth_a_line(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static void child_collect(pid_t *pid)
{
    while (*pid > 0 && waitpid(*pid, NULL, 0) < 0 && errno == EINTR) {
    }
    *pid = 0;
}

/* End the program: ask it first when wait_ms > 0, then kill its whole process group. */
static void program_stop(struct program *p, int64_t wait_ms)
{
    fd_close(&p->to);
    fd_close(&p->from);
    buf_clear(&p->answer);
    pid_t done = 0;
    for (int64_t end = clock_ms() + wait_ms; p->pid > 0 && done == 0 && clock_ms() < end; usleep(1000))
        done = waitpid(p->pid, NULL, WNOHANG);
    if (done != 0)
        p->pid = 0;
    if (p->watcher > 0)
        kill(-p->watcher, SIGKILL);    // also what it started; the number belongs to the watcher until the watcher is reaped
    child_collect(&p->pid);
    child_collect(&p->watcher);
    fd_close(&p->leash);
}

/* Runs in the forked child, where only system calls are safe: make in and out descriptors 0 and 1, and become a shell
 * that runs command in group (0: a new one). */
static void __attribute__((noreturn)) shell_exec(const char *command, pid_t group, int in, int out)
{
    struct rlimit none = { 0, 0 };
    sigset_t empty;
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_CORE, &none);
    if (setpgid(0, group) != 0 || dup2(in, 0) < 0 || (out >= 0 && dup2(out, 1) < 0))
        _exit(126);
    close_range(3, ~0u, 0);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static bool program_start(struct program *p, struct error *err)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 }, leash[2] = { -1, -1 };
    pid_t scorer = getpid();
    bool ok = false;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(leash, O_CLOEXEC) != 0) {
        error_errno(err, "cannot make the pipes of the reward program '%s'", p->command);
        goto out;
    }
    p->watcher = fork();
    if (p->watcher == 0)
        shell_exec("read -r line; kill -KILL 0", 0, leash[0], -1);
    if (p->watcher < 0) {
        error_errno(err, "cannot start the watcher of the reward program '%s'", p->command);
        goto out;
    }
    setpgid(p->watcher, p->watcher);    // parent or child, whichever is first
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != scorer)    // the scorer died before the death signal was set: the watcher may have looked already
            _exit(126);
        shell_exec(p->command, p->watcher, in[0], out[1]);
    }
    if (p->pid < 0) {
        error_errno(err, "cannot start the reward program '%s'", p->command);
        goto out;
    }
    setpgid(p->pid, p->watcher);    // here too: a program stopped at once must be in the group that is killed
    p->leash = leash[1];
    p->to = in[1];
    p->from = out[0];
    leash[1] = in[1] = out[0] = -1;
    fcntl(p->to, F_SETFL, O_NONBLOCK);
    fcntl(p->from, F_SETFL, O_NONBLOCK);
    p->n_start++;
    if (p->n_start > 1 && is_worth_a_line(p->n_start))
        log_warn("reward program '%s' was restarted (%" PRId64 ")", p->command, p->n_start);
    ok = true;
out:
    for (int i = 0; i < 2; i++) {
        fd_close(&in[i]);
        fd_close(&out[i]);
        fd_close(&leash[i]);
    }
    if (!ok) {
        p->pid = MAX(p->pid, 0);
        p->watcher = MAX(p->watcher, 0);
        program_stop(p, 0);
    }
    return ok;
}

/* Write what is left of the request and read one line, until end. On failure ERR_TIMEOUT, ERR_CLOSED or ERR_FULL; then
 * the program must be stopped. */
static bool line_exchange(struct program *p, size_t *sent, int64_t end, size_t *line_len, struct error *err)
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
        struct pollfd fds[2] = { { .fd = p->from, .events = POLLIN }, { .fd = *sent < p->request.len ? p->to : -1, .events = POLLOUT } };
        if (poll(fds, 2, (int)MIN(left, 1000)) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for the reward program");
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

/* False: the response is not UTF-8 (or there is no memory), so that JSON cannot hold it. Other threads use the row too,
 * so it is printed rather than put into an object, which would change its reference count. */
static bool request_make(struct program *p, const struct reward_input *in)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(++p->id));
    bool ok = json_object_set_new(o, "response", json_stringn(in->response, in->response_len)) == 0;
    if (in->has_length && in->n_tok >= 0)
        json_object_set_new(o, "n_tok", json_integer(in->n_tok));
    if (in->has_length)
        json_object_set_new(o, "finish", json_string(in->finish == FINISH_LENGTH ? "length" : "stop"));
    char *line = json_dumps(o, JSON_COMPACT), *row = in->row ? json_dumps(in->row, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(o);
    buf_clear(&p->request);
    ok = ok && line && (row || !in->row);
    if (ok)
        buf_add(&p->request, line, strlen(line) - (row ? 1 : 0));    // without the closing brace: the row follows
    if (ok && row)
        buf_fmt(&p->request, ",\"row\":%s}", row);
    buf_char(&p->request, '\n');
    ok = ok && !p->request.failed;
    free(line);
    free(row);
    return ok;
}

static bool number_get(const json_t *o, const char *key, double *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_is_true(v) ? 1 : json_is_number(v) ? json_number_value(v) : 0;
    return (json_is_number(v) || json_is_boolean(v)) && isfinite(*out);
}

/* The meaning of a line from the program, by its id. */
enum line_kind {
    LINE_ANSWER,
    LINE_LATE,
    LINE_STRAY,
    LINE_MISMATCH,
};
static enum line_kind line_kind(const struct program *p, const json_t *o)
{
    const json_t *id = json_object_get(o, "id");
    if (!json_is_integer(id)) {
        bool meant = id || json_object_get(o, "reward") || json_object_get(o, "error");
        return meant ? LINE_MISMATCH : LINE_STRAY;
    }
    json_int_t n = json_integer_value(id);
    return n == p->id ? LINE_ANSWER : n > 0 && n < p->id ? LINE_LATE : LINE_MISMATCH;
}

/* Count a line that is not the answer and say so in the log. */
static void line_count(struct program *p, enum line_kind kind)
{
    static const char *const what[] = {
        [LINE_LATE] = "skipped an answer to an earlier id",
        [LINE_STRAY] = "skipped a line that is not an answer",
        [LINE_MISMATCH] = "starting it again after an answer to an id that was not asked",
    };
    int64_t *n = kind == LINE_LATE ? &p->n_late : kind == LINE_STRAY ? &p->n_stray : &p->n_mismatch;
    ++*n;
    if (is_worth_a_line(*n))
        log_warn("reward program '%s': %s, while %" PRId64 " was asked (%" PRId64 " so far): %.200s", p->command, what[kind], p->id, *n,
                 p->answer.data);
}

/* Ask and read lines until one is the answer. On success *answer holds it, owned by the caller. On failure as line_exchange,
 * and ERR_DATA when the program has lost track or writes line after line that is not an answer. */
static bool answer_get(struct program *p, json_t **answer, struct error *err)
{
    int64_t end = clock_ms() + (int64_t)(p->timeout_s * 1000);
    size_t sent = 0, len = 0;
    for (int n_skipped = 0;;) {
        if (!line_exchange(p, &sent, end, &len, err))
            return false;
        p->answer.data[len] = 0;
        json_t *o = json_loadb(p->answer.data, len, 0, NULL);
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

static void answer_use(const json_t *o, struct reward_output *out)
{
    const char *error = json_string_value(json_object_get(o, "error")), *rule = json_string_value(json_object_get(o, "rule"));
    double format = 0, right = 0;
    out->score = SCORE_ERROR;
    if (error) {
        snprintf(out->rule, sizeof out->rule, "program: error: %s", error);
    } else if (!number_get(o, "reward", &out->reward)) {
        snprintf(out->rule, sizeof out->rule, "program: no reward");
    } else {
        number_get(o, "format_acc", &format);
        number_get(o, "ans_acc", &right);
        out->score = SCORE_OK;
        out->format_acc = format > 0;
        out->ans_acc = right > 0;
        out->verdict = out->ans_acc > 0 ? VERDICT_EQUAL : VERDICT_DIFFERENT;
        snprintf(out->rule, sizeof out->rule, "%s", rule ? rule : "program");
    }
}

static void sample_score(struct program *p, const struct reward_input *in, struct reward_output *out)
{
    struct error err = { 0 };
    json_t *answer = NULL;
    int64_t n_stray = p->n_stray;
    out->score = SCORE_ERROR;
    if (!request_make(p, in)) {
        snprintf(out->rule, sizeof out->rule, "program: not UTF-8");
        return;
    }
    bool old = p->pid != 0;    // a fault of a program that has answered before may be an earlier sample's doing
    for (int attempt = old ? -1 : 0; attempt < 2; attempt++) {
        if (p->pid == 0 && !program_start(p, &err))
            break;
        if (answer_get(p, &answer, &err)) {
            answer_use(answer, out);
            json_decref(answer);
            return;
        }
        program_stop(p, err.code == ERR_CLOSED ? END_MS : 0);
        if (err.code != ERR_CLOSED && !(err.code == ERR_DATA && attempt < 0))
            break;
    }
    if (is_worth_a_line(p->n_start))
        log_warn("reward program '%s': %s", p->command, err.text);
    out->score = err.code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
    snprintf(out->rule, sizeof out->rule, "program: %s",
             err.code == ERR_TIMEOUT  ? p->n_stray > n_stray ? "time-out after stray lines" : "time-out"
             : err.code == ERR_CLOSED ? "it ended"
             : err.code == ERR_DATA   ? "not an answer"
                                      : "error");
}

static void program_score(void *self, UNUSED const struct reward_config *config, const struct reward_input *in, struct reward_output *out,
                          int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t start = clock_ns();
        sample_score(self, &in[i], &out[i]);
        out[i].us = (double)(clock_ns() - start) / 1000;
    }
}

static void program_close(void *self)
{
    struct program *p = self;
    program_stop(p, END_MS);
    buf_release(&p->request);
    buf_release(&p->answer);
    free(p->command);
    free(p);
}

static bool program_open(void **self, const struct reward_config *config, const char *arg, struct error *err)
{
    if (!*arg)
        return error_set(err, ERR_USAGE, "'program:' needs the command to run after it");
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, ERR_NO_MEMORY, "no memory for a reward program");
    *p = (struct program){ .to = -1,
                           .from = -1,
                           .leash = -1,
                           .timeout_s = config->program_timeout_s > 0 ? config->program_timeout_s : 10,
                           .answer = { .max = LINE_MAX_BYTES + 65537 } };
    p->command = strdup(arg);
    if (!p->command) {
        free(p);
        return error_set(err, ERR_NO_MEMORY, "no memory for a reward program");
    }
    if (!program_start(p, err)) {
        program_close(p);
        return false;
    }
    *self = p;
    return true;
}

const struct reward_kind reward_kind_program = {
    .name = "program:",
    .open = program_open,
    .close = program_close,
    .score = program_score,
};
