#include "tests/tui/pty.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "console/tui/text.h"

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void answer_out(const char *s, size_t len, void *user)    // the terminal's answers to the program's questions
{
    struct pty *p = user;
    if (write(p->master, s, len) < 0) {
        /* a program that has gone needs no answer */
    }
}

bool pty_start(struct pty *p, int cols, int rows, const char *const *env, char *const *argv)
{
    struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols };
    *p = (struct pty){ .master = -1, .rows = rows, .cols = cols };
    p->pid = forkpty(&p->master, NULL, NULL, &size);
    if (p->pid < 0)
        return false;
    if (p->pid == 0) {
        setenv("TERM", "xterm-256color", 1);
        setenv("LC_ALL", "C.UTF-8", 1);
        unsetenv("NO_COLOR");
        unsetenv("COLORFGBG");
        for (; env && *env; env++)
            if (strchr(*env, '='))
                putenv((char *)*env);
            else
                unsetenv(*env);
        execvp(argv[0], argv);
        _exit(127);
    }
    fcntl(p->master, F_SETFL, O_NONBLOCK);
    p->vt = vterm_new(rows, cols);
    vterm_set_utf8(p->vt, 1);
    vterm_output_set_callback(p->vt, answer_out, p);
    p->screen = vterm_obtain_screen(p->vt);
    vterm_screen_enable_altscreen(p->screen, 1);
    vterm_screen_reset(p->screen, 1);
    return true;
}

void pty_resize(struct pty *p, int cols, int rows)
{
    struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols };
    if (!p->fixed) {
        p->rows = rows;
        p->cols = cols;
        vterm_set_size(p->vt, rows, cols);
    }
    ioctl(p->master, TIOCSWINSZ, &size);
}

void pty_send(struct pty *p, const char *bytes, int len)
{
    for (int64_t until = now_ms() + 10000; len > 0 && now_ms() < until;) {
        ssize_t n = write(p->master, bytes, (size_t)len);
        if (n < 0 && errno != EAGAIN)
            return;
        if (n < 0)
            pty_read(p, 10, 0);    // it waits for us to read first
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (int)n : 0;
    }
}

void pty_type(struct pty *p, const char *bytes)
{
    pty_send(p, bytes, (int)strlen(bytes));
}

void pty_read(struct pty *p, int ms, int quiet_ms)
{
    char chunk[8192];
    int64_t until = now_ms() + ms, last = now_ms();
    for (;;) {
        int64_t now = now_ms();
        if (now >= until || (quiet_ms > 0 && now - last >= quiet_ms) || p->ended)
            return;
        int64_t wait = until - now;
        if (quiet_ms > 0 && last + quiet_ms - now < wait)
            wait = last + quiet_ms - now;
        struct pollfd fd = { .fd = p->master, .events = POLLIN };
        if (poll(&fd, 1, (int)wait) <= 0)
            continue;
        ssize_t n = read(p->master, chunk, sizeof(chunk));
        if (n > 0) {
            p->bytes_out += n;
            vterm_input_write(p->vt, chunk, (size_t)n);
            last = now_ms();
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            p->ended = true;
        }
    }
}

const char *pty_row(struct pty *p, int y)
{
    static char text[16384];
    size_t at = 0, end = 0;
    for (int x = 0; x < p->cols && at + 40 < sizeof(text);) {
        VTermScreenCell cell;
        if (!vterm_screen_get_cell(p->screen, (VTermPos){ .row = y, .col = x }, &cell))
            break;
        uint32_t first = cell.chars[0];
        if (first == 0 || first == (uint32_t)-1)
            text[at++] = ' ';
        for (int i = 0; first != (uint32_t)-1 && i < VTERM_MAX_CHARS_PER_CELL && cell.chars[i]; i++)
            at += text_encode(cell.chars[i], text + at);
        if (first != 0 && first != ' ')
            end = at;
        x += cell.width > 0 ? cell.width : 1;
    }
    text[end] = 0;
    return text;
}

bool pty_shows(struct pty *p, const char *text)
{
    for (int y = 0; y < p->rows; y++)
        if (strstr(pty_row(p, y), text))
            return true;
    return false;
}

bool pty_wait(struct pty *p, const char *text, int limit_s)
{
    int64_t until = now_ms() + 1000 * (int64_t)limit_s;
    while (!pty_shows(p, text)) {
        if (now_ms() >= until || p->ended)
            return pty_shows(p, text);
        pty_read(p, 100, 20);
    }
    return true;
}

bool pty_wait_gone(struct pty *p, const char *text, int limit_s)
{
    int64_t until = now_ms() + 1000 * (int64_t)limit_s;
    while (pty_shows(p, text) && now_ms() < until && !p->ended)
        pty_read(p, 100, 20);
    return !pty_shows(p, text);
}

static bool is_blank(const VTermScreenCell *c)
{
    return c->chars[0] == 0 || c->chars[0] == ' ';    // erased, written
}

/* Do they look alike? Only the ground of a blank is seen. */
static bool cell_same(const VTermScreenCell *a, const VTermScreenCell *b)
{
    if (a->attrs.underline != b->attrs.underline || a->attrs.reverse != b->attrs.reverse || !vterm_color_is_equal(&a->bg, &b->bg))
        return false;
    if (is_blank(a) || is_blank(b))
        return is_blank(a) && is_blank(b);
    for (int i = 0; i < VTERM_MAX_CHARS_PER_CELL && (a->chars[i] || b->chars[i]); i++)
        if (a->chars[i] != b->chars[i])
            return false;
    return a->width == b->width && a->attrs.bold == b->attrs.bold && vterm_color_is_equal(&a->fg, &b->fg);
}

int pty_row_differs(const struct pty *a, const struct pty *b, int y, int end)
{
    for (; y < end; y++)
        for (int x = 0; x < a->cols; x++) {
            VTermPos at = { .row = y, .col = x };
            VTermScreenCell ca, cb;
            if (!vterm_screen_get_cell(a->screen, at, &ca) || !vterm_screen_get_cell(b->screen, at, &cb) || !cell_same(&ca, &cb))
                return y;
        }
    return -1;
}

void pty_print(struct pty *p)
{
    for (int y = 0; y < p->rows; y++)
        fprintf(stderr, "|%s\n", pty_row(p, y));
}

int pty_finish(struct pty *p, int limit_s, bool close_first)
{
    int status = 0;
    int64_t until = now_ms() + 1000 * (int64_t)limit_s;
    if (close_first)
        close(p->master);
    pid_t got;
    while ((got = waitpid(p->pid, &status, WNOHANG)) == 0) {
        if (now_ms() >= until) {
            kill(p->pid, SIGKILL);
            got = waitpid(p->pid, &status, 0);
            status = -1;
            break;
        }
        if (close_first)
            poll(NULL, 0, 10);
        else {
            pty_read(p, 10, 0);
            if (p->ended)
                poll(NULL, 0, 5);
        }
    }
    if (!close_first)
        close(p->master);
    vterm_free(p->vt);
    p->vt = NULL;
    return got < 0 || status == -1 ? -1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
