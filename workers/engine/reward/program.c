/* program.c - the reward kind "program:CMD": a program of the user's own, in any language, asked over a pipe
 *
 * CMD is run by /bin/sh and kept running. It reads one JSON object a line and writes one a line, and flushes:
 *     in   {"id": 7, "response": "...", "row": {the dataset's line}, "n_tok": 120, "finish": "stop" or "length"}
 *     out  {"id": 7, "reward": 0.5, "format_acc": 1, "ans_acc": 0, "rule": "a word on why"}
 *     or   {"id": 7, "error": "why there is no score"}
 * n_tok and finish are absent when unknown; of an answer only id and reward are needed; true and false are 1 and 0. A
 * line that is not an answer to id, an error, or none within the time limit leaves the sample out of the group. A
 * program that ends is started again and asked once more; one that overruns is killed with its process group and
 * started again for the next sample. It runs with the scorer's rights: it is the user's own and not contained. Its
 * standard error goes to the scorer's log. Closing its input asks it to end. */
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
#define END_MS 1000                  // that a program may take to end when its input is closed

struct program {
    char *command;
    double timeout_s;
    pid_t pid;             // of the shell, leader of its process group; 0: not running
    int to, from;          // our ends, non-blocking; -1: not running
    struct buf request, answer;    // answer keeps what was read beyond a line
    int64_t id;
    int64_t n_start;       // counted for the log
};

static void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* End the program: politely with wait_ms > 0, then its whole process group. */
static void program_stop(struct program *p, int64_t wait_ms)
{
    int status = 0;
    fd_close(&p->to);
    fd_close(&p->from);
    buf_clear(&p->answer);
    if (p->pid <= 0)
        return;
    pid_t done = 0;
    for (int64_t end = clock_ms() + wait_ms; done == 0 && clock_ms() < end; usleep(1000))
        done = waitpid(p->pid, &status, WNOHANG);
    kill(-p->pid, SIGKILL);    // what it started too
    while (done == 0 && waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {
    }
    p->pid = 0;
}

static bool program_start(struct program *p, struct error *err)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 };
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        fd_close(&in[0]);
        fd_close(&in[1]);
        return error_errno(err, "cannot make the pipes of the reward program '%s'", p->command);
    }
    pid_t pid = fork();
    if (pid == 0) {    // only system calls from here
        struct rlimit none = { 0, 0 };
        sigset_t empty;
        sigemptyset(&empty);
        sigprocmask(SIG_SETMASK, &empty, NULL);
        signal(SIGPIPE, SIG_DFL);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_CORE, &none);
        if (dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0)
            _exit(126);
        close_range(3, ~0u, 0);
        execl("/bin/sh", "sh", "-c", p->command, (char *)NULL);
        _exit(127);
    }
    fd_close(&in[0]);
    fd_close(&out[1]);
    if (pid < 0) {
        fd_close(&in[1]);
        fd_close(&out[0]);
        return error_errno(err, "cannot start the reward program '%s'", p->command);
    }
    setpgid(pid, pid);    // by whichever of us is first
    p->pid = pid;
    p->to = in[1];
    p->from = out[0];
    fcntl(p->to, F_SETFL, O_NONBLOCK);
    fcntl(p->from, F_SETFL, O_NONBLOCK);
    p->n_start++;
    if (p->n_start > 1 && (p->n_start & (p->n_start - 1)) == 0)    // a program that always ends fills no log
        log_warn("reward program '%s' was started again (%lld)", p->command, (long long)p->n_start);
    return true;
}

/* Write the request and read one line, within the time limit. On failure ERR_TIMEOUT, ERR_CLOSED or ERR_FULL; then the
 * program must be stopped. */
static bool line_exchange(struct program *p, size_t *line_len, struct error *err)
{
    int64_t end = clock_ms() + (int64_t)(p->timeout_s * 1000);
    size_t sent = 0;
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
        struct pollfd fds[2] = { { .fd = p->from, .events = POLLIN },
                                 { .fd = sent < p->request.len ? p->to : -1, .events = POLLOUT } };
        if (poll(fds, 2, (int)MIN(left, 1000)) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for the reward program");
        if (fds[1].revents) {
            ssize_t n = write(p->to, p->request.data + sent, p->request.len - sent);
            if (n > 0)
                sent += (size_t)n;
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

/* False: the response is not UTF-8 (or there is no memory), so that JSON cannot hold it. The row is other threads' too: it is printed
 * and not put into an object, since that would count its references up and down. */
static bool request_make(struct program *p, const struct reward_input *in)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(++p->id));
    bool ok = json_object_set_new(o, "response", json_stringn(in->response, in->response_len)) == 0;
    if (in->has_length) {
        json_object_set_new(o, "n_tok", json_integer(in->n_tok));
        json_object_set_new(o, "finish", json_string(in->finish == FINISH_LENGTH ? "length" : "stop"));
    }
    char *line = json_dumps(o, JSON_COMPACT), *row = in->row ? json_dumps(in->row, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(o);
    buf_clear(&p->request);
    ok = ok && line && (row || !in->row);
    if (ok)
        buf_add(&p->request, line, strlen(line) - (row ? 1 : 0));    // open again, for the row
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

static void answer_read(struct program *p, size_t len, struct reward_output *out)
{
    json_error_t je;
    json_t *o = json_loadb(p->answer.data, len, 0, &je);
    const char *error = json_string_value(json_object_get(o, "error")),
               *rule = json_string_value(json_object_get(o, "rule"));
    double format = 0, right = 0;
    out->score = SCORE_ERROR;
    if (!json_is_object(o) || json_integer_value(json_object_get(o, "id")) != p->id) {
        snprintf(out->rule, sizeof out->rule, "program: not an answer");
        log_warn("reward program '%s' wrote what is no answer to id %lld: %.200s", p->command, (long long)p->id,
                 p->answer.data);
    } else if (error) {
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
    json_decref(o);
    p->answer.len -= len + 1;
    memmove(p->answer.data, p->answer.data + len + 1, p->answer.len + 1);
}

static void sample_score(struct program *p, const struct reward_input *in, struct reward_output *out)
{
    struct error err = { 0 };
    size_t len = 0;
    if (!request_make(p, in)) {
        snprintf(out->rule, sizeof out->rule, "program: not UTF-8");
        return;
    }
    bool old = p->pid != 0;    // one that has ended since its last answer says nothing about this sample
    for (int attempt = old ? -1 : 0; attempt < 2; attempt++) {
        if (p->pid == 0 && !program_start(p, &err))
            break;
        if (line_exchange(p, &len, &err)) {
            answer_read(p, len, out);
            return;
        }
        program_stop(p, err.code == ERR_CLOSED ? END_MS : 0);
        if (err.code != ERR_CLOSED)
            break;
    }
    if ((p->n_start & (p->n_start - 1)) == 0)
        log_warn("reward program '%s': %s", p->command, err.text);
    out->score = err.code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
    snprintf(out->rule, sizeof out->rule, "program: %s", err.code == ERR_TIMEOUT ? "time-out" :
             err.code == ERR_CLOSED ? "it ended" : "error");
}

static void program_score(void *self, UNUSED const struct reward_config *config, const struct reward_input *in,
                          struct reward_output *out, int64_t n)
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
        return error_set(err, ERR_USAGE, "'program:' needs the command to run behind it");
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, ERR_NO_MEMORY, "no memory for a reward program");
    *p = (struct program){.to = -1,
                          .from = -1,
                          .timeout_s = config->program_timeout_s > 0 ? config->program_timeout_s : 10,
                          .answer = {.max = LINE_MAX_BYTES + 65537}};
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
    .name = "program:", .open = program_open, .close = program_close, .score = program_score,
};
