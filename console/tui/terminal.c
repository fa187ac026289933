/* terminal.c - see terminal.h
 *
 * 1. Only the terminal thread calls ncurses, from newterm to endwin; the loop thread talks to it through the mailbox.
 * 2. When a frame's size differs from ncurses' idea of the screen, ncurses is resized first: the loop learns a new size from
 *    SIGWINCH (which is blocked here, so ncurses' own handler never runs).
 * 3. Pasted text comes between marks (bracketed paste) and leaves as one KEY_PASTE: no byte of it is ever a key.
 * 4. Rows equal to the last drawn ones are not touched; in the others ncurses finds the changed cells. */
#include "console/tui/terminal.h"
#include <errno.h>
#include <fcntl.h>
#include <ncurses.h>
#include <term.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>
#include "console/tui/text.h"
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"

#define KEYS_MAX 256
#define PAIRS_MAX 512
#define STOP_LIMIT_S 2
#define PASTE_MAX 4096         // bytes of a pasted text that are kept; no line here is longer
#define PASTE_END_MS 2000      // a paste without an end mark is over after this long without a byte
#define READ_ERRORS_MAX 100    // readable but nothing to read, this many times in a row: the terminal is gone

struct terminal {
    struct terminal_options options;
    pthread_t thread;
    int wake_fd;             // to the thread: the mailbox has something
    int keys_fd;             // to the loop: keys wait
    struct termios saved;    // modes before we started
    FILE *out;               // what ncurses writes to; NULL: not open
    int stderr_fd;           // the real stderr while messages go to memory; -1
    int notes_fd;            // what libraries wrote to stderr meanwhile; -1
    enum color_depth depth;
    bool sync;    // frames are written between synchronised-output marks

    pthread_mutex_t lock;    // guards: all up to the next blank line
    pthread_cond_t started;
    bool is_started, is_done;
    struct error start_err;    // code ERR_NONE: it started
    struct cells frame;        // newest frame
    bool has_frame, want_redraw, want_suspend, want_stop, want_look, want_bell;
    int want_mouse;    // -1: no change
    struct theme theme;
    struct key_event key[KEYS_MAX];
    int key_first, n_key;
    char paste[PASTE_MAX];    // the newest pasted text, NUL at the end
    bool gone;

    /* the thread's own */
    SCREEN *screen;
    struct cells shown;    // the size that ncurses knows
    struct look look[N_ROLE][2];
    int pair[N_ROLE][2];
    struct {
        int fg, bg;
    } known_pair[PAIRS_MAX];
    int n_pair;
    bool pasting;        // between the marks
    int64_t paste_ns;    // when its last byte came
    int n_paste;         // its bytes so far, including those not kept
    char pasted[PASTE_MAX];
};

/* ---- the thread's side ---- */

static int pair_find(struct terminal *t, int fg, int bg)
{
    if (t->depth == DEPTH_NONE || (fg == COLOR_DEFAULT && bg == COLOR_DEFAULT))
        return 0;
    for (int i = 1; i < t->n_pair; i++)
        if (t->known_pair[i].fg == fg && t->known_pair[i].bg == bg)
            return i;
    if (t->n_pair >= PAIRS_MAX || t->n_pair >= COLOR_PAIRS || init_extended_pair(t->n_pair, fg, bg) != OK)
        return 0;
    t->known_pair[t->n_pair].fg = fg;
    t->known_pair[t->n_pair].bg = bg;
    return t->n_pair++;
}

static void looks_make(struct terminal *t, const struct theme *theme)
{
    for (int r = 0; r < N_ROLE; r++)
        for (int s = 0; s < 2; s++) {
            t->look[r][s] = theme_look(theme, (enum role)r, s == 1, t->depth);
            t->pair[r][s] = pair_find(t, t->look[r][s].fg, t->look[r][s].bg);
        }
}

static attr_t attr_of(unsigned attr)
{
    return ((attr & ATTR_BOLD) ? A_BOLD : 0) | ((attr & ATTR_DIM) ? A_DIM : 0) | ((attr & ATTR_UNDERLINE) ? A_UNDERLINE : 0)
           | ((attr & ATTR_REVERSE) ? A_REVERSE : 0);
}

static void row_put(struct terminal *t, const struct cells *f, int y)
{
    const struct cell *row = &f->cell[(size_t)y * (size_t)f->w];
    for (int x = 0; x < f->w; x++) {
        const struct cell *cell = &row[x];
        if (cell->ch == 0)
            continue;    // written with its left half
        int s = cell->selected != 0, role = cell->role < N_ROLE ? cell->role : ROLE_TEXT, pair = t->pair[role][s];
        int w = x + 1 < f->w && row[x + 1].ch == 0 ? 2 : 1;
        wchar_t text[3] = { (wchar_t)cell->ch, (wchar_t)cell->mark, 0 };
        if (wcwidth(text[0]) != w) {    // the C library would move the cursor differently from us
            text[0] = '?';
            text[1] = 0;
        }
        if (text[1] && wcwidth(text[1]) != 0)
            text[1] = 0;
        cchar_t out;
        setcchar(&out, text, attr_of(t->look[role][s].attr | cell->attr), (short)MIN(pair, 32767), &pair);
        mvadd_wch(y, x, &out);
        if (w == 2 && text[0] == '?')
            mvadd_wch(y, x + 1, &out);
    }
}

/* Past ncurses' own buffer, which is empty before doupdate and after it. */
static void out_write(const char *s)
{
    if (write(STDOUT_FILENO, s, strlen(s)) < 0) {
        /* the frame itself will fail too, and is handled there */
    }
}

static void frame_put(struct terminal *t, const struct cells *f, bool anew)
{
    if (f->h != LINES || f->w != COLS) {
        resizeterm(f->h, f->w);
        anew = true;
    }
    bool same_size = t->shown.w == f->w && t->shown.h == f->h;
    bool changed = anew || t->shown.cursor_x != f->cursor_x || t->shown.cursor_y != f->cursor_y;
    if (anew) {
        /* ncurses sets scroll margins and assumes that they stay: what it wrote for the old size may have reached the terminal
         * after the change, and other programs leave their own */
        if (change_scroll_region)
            out_write(tparm(change_scroll_region, 0, f->h - 1));
        clearok(curscr, TRUE);
    }
    for (int y = 0; y < f->h; y++) {
        size_t at = (size_t)y * (size_t)f->w;
        if (same_size && !anew && memcmp(&t->shown.cell[at], &f->cell[at], (size_t)f->w * sizeof(*f->cell)) == 0)
            continue;
        row_put(t, f, y);
        changed = true;
    }
    if (!changed)
        return;
    bool cursor = f->cursor_x >= 0 && f->cursor_x < f->w && f->cursor_y >= 0 && f->cursor_y < f->h;
    curs_set(cursor ? 1 : 0);
    if (cursor)
        move(f->cursor_y, f->cursor_x);
    if (t->sync)
        out_write("\033[?2026h");
    wnoutrefresh(stdscr);
    doupdate();
    if (t->sync)
        out_write("\033[?2026l");
}

static void mouse_set(bool on)
{
    mousemask(on ? BUTTON1_PRESSED | BUTTON1_CLICKED | BUTTON4_PRESSED | BUTTON5_PRESSED : 0, NULL);
    mouseinterval(0);
}

static bool key_translate(bool is_function_key, wint_t ch, struct key_event *k)
{
    static const struct {
        int curses;
        uint32_t key;
    } table[] = {
        { KEY_UP, KEY_ARROW_UP },   { KEY_DOWN, KEY_ARROW_DOWN }, { KEY_LEFT, KEY_ARROW_LEFT }, { KEY_RIGHT, KEY_ARROW_RIGHT },
        { KEY_PPAGE, KEY_PAGE_UP }, { KEY_NPAGE, KEY_PAGE_DOWN }, { KEY_HOME, KEY_TO_HOME },    { KEY_END, KEY_TO_END },
        { KEY_DC, KEY_DEL },        { KEY_BACKSPACE, KEY_ERASE }, { KEY_BTAB, KEY_SHIFT_TAB },  { KEY_F(1), KEY_F1_ },
        { KEY_ENTER, KEY_RETURN },
    };
    *k = (struct key_event){ .key = ch };
    if (!is_function_key)
        return ch != 0;
    if (ch == KEY_MOUSE) {
        MEVENT m;
        if (getmouse(&m) != OK)
            return false;
        k->x = m.x;
        k->y = m.y;
        k->key = (m.bstate & BUTTON4_PRESSED) ? KEY_WHEEL_UP : (m.bstate & BUTTON5_PRESSED) ? KEY_WHEEL_DOWN : KEY_CLICK;
        return true;
    }
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (table[i].curses == (int)ch) {
            k->key = table[i].key;
            return true;
        }
    return false;
}

static void event_write(int fd)
{
    uint64_t one = 1;
    if (write(fd, &one, sizeof(one)) < 0) {
        /* counter full: the reader is already awake */
    }
}

static void event_read(int fd)
{
    uint64_t n;
    if (read(fd, &n, sizeof(n)) < 0) {
        /* nothing was there */
    }
}

/* ncurses reads the marks around a pasted text as keys with these codes. */
#define CODE_PASTE_BEGIN (KEY_MAX + 1)
#define CODE_PASTE_END (KEY_MAX + 2)

static void paste_marks_set(bool on)
{
    out_write(on ? "\033[?2004h" : "\033[?2004l");
}

static void key_queue(struct terminal *t, const struct key_event *k)
{
    pthread_mutex_lock(&t->lock);
    if (k->key == KEY_PASTE)
        memcpy(t->paste, t->pasted, sizeof(t->paste));
    if (t->n_key < KEYS_MAX)    // drop further keys: they do not help a loop that is 256 keys late
        t->key[(t->key_first + t->n_key++) % KEYS_MAX] = *k;
    pthread_mutex_unlock(&t->lock);
}

static void paste_end(struct terminal *t)
{
    t->pasting = false;
    t->pasted[MIN(t->n_paste, PASTE_MAX - 1)] = 0;
    key_queue(t, &(struct key_event){ .key = KEY_PASTE, .x = t->n_paste });
}

static void paste_add(struct terminal *t, wint_t ch)
{
    char bytes[4];
    int n = (int)text_encode(ch == '\r' ? '\n' : (uint32_t)ch, bytes);
    if (t->n_paste + n < PASTE_MAX)
        memcpy(t->pasted + t->n_paste, bytes, (size_t)n);
    t->n_paste = MIN(t->n_paste, INT32_MAX - 8) + n;
}

/* Is this key part of a pasted text, or one of its marks? */
static bool paste_take(struct terminal *t, bool is_function_key, wint_t ch)
{
    int64_t now = clock_ns();
    if (t->pasting && now - t->paste_ns > (int64_t)PASTE_END_MS * 1000000)
        paste_end(t);
    t->paste_ns = now;
    if (is_function_key && ch == CODE_PASTE_BEGIN) {
        t->pasting = true;
        t->n_paste = 0;
        return true;
    }
    if (is_function_key && ch == CODE_PASTE_END) {
        if (t->pasting)
            paste_end(t);
        return true;
    }
    if (t->pasting && !is_function_key)
        paste_add(t, ch);
    return t->pasting;
}

/* Read all waiting keys; returns whether there were any. */
static bool keys_read(struct terminal *t)
{
    bool any = false;
    wint_t ch;
    int rc;
    while ((rc = get_wch(&ch)) != ERR) {
        struct key_event k;
        any = true;
        if (!paste_take(t, rc == KEY_CODE_YES, ch) && key_translate(rc == KEY_CODE_YES, ch, &k))
            key_queue(t, &k);
    }
    if (any)
        event_write(t->keys_fd);
    return any;
}

static void suspend_here(struct terminal *t)
{
    paste_marks_set(false);
    endwin();
    tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
    /* Stop the whole job, as the terminal itself would; in an orphaned group nothing happens. Our own signal is sent to this
     * thread: another thread could take a signal to the process, and refresh ignores SIGTSTP while it draws, which discards a
     * pending one. */
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    signal(SIGTSTP, SIG_IGN);
    kill(0, SIGTSTP);
    signal(SIGTSTP, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &stop, &before);    // as every thread of ours, this one takes no signals else
    raise(SIGTSTP);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    refresh();    // back again
    mouse_set(t->options.mouse);
    paste_marks_set(true);
}

/* Sequences that are keys whatever the terminal's description says. It knows one form of the arrows, and terminals send both (ECMA-48's
 * CSI, and SS3 of application mode): one that is not known would be Esc and a letter, which is a command. */
static void sequences_define(void)
{
    static const struct {
        const char *bytes;
        int code;
    } rows[] = {
        { "\033[200~", CODE_PASTE_BEGIN },
        { "\033[201~", CODE_PASTE_END },
        { "\033[A", KEY_UP },
        { "\033OA", KEY_UP },
        { "\033[B", KEY_DOWN },
        { "\033OB", KEY_DOWN },
        { "\033[C", KEY_RIGHT },
        { "\033OC", KEY_RIGHT },
        { "\033[D", KEY_LEFT },
        { "\033OD", KEY_LEFT },
        { "\033[H", KEY_HOME },
        { "\033OH", KEY_HOME },
        { "\033[F", KEY_END },
        { "\033OF", KEY_END },
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        define_key(rows[i].bytes, rows[i].code);
}

static bool start_here(struct terminal *t, struct error *err)
{
    const char *term = getenv("TERM");
    int fd = t->out ? -1 : fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (!t->out && (fd < 0 || !(t->out = fdopen(fd, "w"))))    // ncurses' own: stdout shows control characters instead of sending them
        return error_errno(err, "cannot open the terminal");
    t->screen = newterm(NULL, t->out, stdin);
    if (!t->screen)
        return error_set(err, ERR_UNSUPPORTED, "the terminal type '%.60s' is not known here; try TERM=xterm, or --batch", term ? term : "");
    if (!tigetstr("cup") || tigetstr("cup") == (char *)-1) {
        endwin();
        delscreen(t->screen);
        t->screen = NULL;
        return error_set(err, ERR_UNSUPPORTED, "a terminal of type '%.60s' cannot move its cursor; use --batch", term ? term : "");
    }
    signal(SIGTSTP, SIG_DFL);    // ncurses' own handler is not safe with threads; Ctrl-Z comes as a key
    raw();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(t->options.escape_ms);
    sequences_define();
    paste_marks_set(true);
    int has = 0;
    if (has_colors() && start_color() == OK) {
        use_default_colors();
        has = COLORS;
    }
    const char *no_color = getenv("NO_COLOR");
    t->depth = t->options.color >= 0 ? (enum color_depth)t->options.color : (no_color && no_color[0]) ? DEPTH_NONE : DEPTH_TRUE;
    enum color_depth most = has > 256 ? DEPTH_TRUE : has >= 256 ? DEPTH_256 : has >= 8 ? DEPTH_8 : DEPTH_NONE;
    t->depth = MIN(t->depth, most);
    t->n_pair = 1;
    t->sync = term
              && (strncmp(term, "xterm", 5) == 0 || strncmp(term, "tmux", 4) == 0 || strncmp(term, "screen", 6) == 0
                  || strstr(term, "kitty") || strstr(term, "alacritty") || strstr(term, "foot") || strstr(term, "ghostty"));
    looks_make(t, &t->theme);
    mouse_set(t->options.mouse);
    return true;
}

/* The mailbox's contents, taken out under the lock. */
struct orders {
    bool frame, redraw, suspend, stop, look, rings;
    int mouse;
    struct theme theme;
};

static struct orders orders_take(struct terminal *t)
{
    pthread_mutex_lock(&t->lock);
    struct orders o = { t->has_frame, t->want_redraw, t->want_suspend, t->want_stop, t->want_look, t->want_bell, t->want_mouse, t->theme };
    t->has_frame = t->want_redraw = t->want_suspend = t->want_look = t->want_bell = false;
    t->want_mouse = -1;
    pthread_mutex_unlock(&t->lock);
    return o;
}

/* Draw the newest frame; keep it as the visible frame, and return the previous one to the mailbox for reuse. */
static void frame_take(struct terminal *t, bool anew)
{
    struct cells f;
    pthread_mutex_lock(&t->lock);
    f = t->frame;
    t->frame = (struct cells){ 0 };
    pthread_mutex_unlock(&t->lock);
    if (!f.cell)
        return;
    frame_put(t, &f, anew);
    struct cells old = t->shown;
    t->shown = f;
    pthread_mutex_lock(&t->lock);
    if (!t->frame.cell) {
        t->frame = old;
        old = (struct cells){ 0 };
    }
    pthread_mutex_unlock(&t->lock);
    cells_release(&old);
}

static void *terminal_thread(void *arg)
{
    struct terminal *t = arg;
    struct error err = { 0 };
    bool ok = start_here(t, &err);
    pthread_mutex_lock(&t->lock);
    t->start_err = err;
    t->is_started = true;
    t->is_done = !ok;
    pthread_cond_signal(&t->started);
    pthread_mutex_unlock(&t->lock);
    if (!ok)
        return NULL;
    int errors = 0;
    bool gone = false;
    while (!gone) {
        struct pollfd fds[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = t->wake_fd, .events = POLLIN } };
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[0].revents & POLLIN) {
            errors = keys_read(t) ? 0 : errors + 1;
            gone = errors > READ_ERRORS_MAX;
        }
        if (fds[0].revents & (POLLHUP | POLLERR | POLLNVAL))
            gone = true;
        if (!(fds[1].revents & POLLIN))
            continue;
        event_read(t->wake_fd);
        struct orders o = orders_take(t);
        if (o.stop)
            break;
        if (o.rings)
            beep();
        if (o.suspend) {
            suspend_here(t);
            o.redraw = true;
        }
        if (o.mouse >= 0) {
            t->options.mouse = o.mouse;
            mouse_set(o.mouse);
        }
        if (o.look) {
            looks_make(t, &o.theme);
            o.redraw = true;
        }
        if (o.frame)
            frame_take(t, o.redraw);
        else if (o.redraw && t->shown.cell)
            frame_put(t, &t->shown, true);
    }
    if (!gone) {
        mouse_set(false);
        paste_marks_set(false);
        endwin();
    }
    pthread_mutex_lock(&t->lock);
    t->gone = gone;
    t->is_done = true;
    pthread_cond_signal(&t->started);
    pthread_mutex_unlock(&t->lock);
    event_write(t->keys_fd);
    return NULL;
}

/* ---- a crash: leave a usable terminal and print the last messages ---- */

static const int crash_signals[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };
/* The one mutable global: a signal handler gets no argument. Written before the handlers are set, and read only by them. */
static struct {
    struct termios saved;
    int stderr_fd, notes_fd;
} crash;

static void on_crash(int sig)
{
    static const char leave[] = "\033[?1000l\033[?1002l\033[?1006l\033[?2004l\033[?2026l\033[?1049l\033[?25h\033[0m\r\n";
    char text[1024];
    ssize_t n = write(STDOUT_FILENO, leave, sizeof(leave) - 1);    // only what is safe in a handler
    tcsetattr(STDIN_FILENO, TCSANOW, &crash.saved);
    off_t size = crash.notes_fd >= 0 ? lseek(crash.notes_fd, 0, SEEK_END) : 0;
    if (size > 0 && (n = pread(crash.notes_fd, text, sizeof(text), size > (off_t)sizeof(text) ? size - (off_t)sizeof(text) : 0)) > 0)
        n = write(crash.stderr_fd, text, (size_t)n);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void crash_watch(const struct terminal *t, bool on)
{
    crash.saved = t->saved;
    crash.stderr_fd = t->stderr_fd;
    crash.notes_fd = t->notes_fd;
    for (size_t i = 0; i < ARRAY_SIZE(crash_signals); i++) {
        struct sigaction now, ours = { .sa_handler = on_crash };
        sigaction(crash_signals[i], NULL, &now);
        if (on && now.sa_handler == SIG_DFL)    // keep a sanitizer's handler
            sigaction(crash_signals[i], &ours, NULL);
        else if (!on && now.sa_handler == on_crash)
            signal(crash_signals[i], SIG_DFL);
    }
}

/* ---- the loop's side ---- */

/* Libraries' messages would disturb the screen: keep them in memory and print them afterwards. */
static void stderr_hide(struct terminal *t)
{
    t->notes_fd = isatty(STDERR_FILENO) ? memfd_create("rollcall-stderr", MFD_CLOEXEC) : -1;
    t->stderr_fd = t->notes_fd >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    if (t->stderr_fd >= 0)
        dup2(t->notes_fd, STDERR_FILENO);
}

static void stderr_show(struct terminal *t)
{
    char text[4096];
    if (t->stderr_fd >= 0) {
        dup2(t->stderr_fd, STDERR_FILENO);
        close(t->stderr_fd);
        off_t size = lseek(t->notes_fd, 0, SEEK_END);
        ssize_t n = pread(t->notes_fd, text, sizeof(text), size > (off_t)sizeof(text) ? size - (off_t)sizeof(text) : 0);
        if (n > 0 && !t->gone && write(STDERR_FILENO, text, (size_t)n) < 0) {
            /* nowhere to report it */
        }
    }
    if (t->notes_fd >= 0)
        close(t->notes_fd);
    t->stderr_fd = t->notes_fd = -1;
}

static void terminal_release(struct terminal *t)
{
    if (t->out)
        fclose(t->out);
    stderr_show(t);
    cells_release(&t->frame);
    cells_release(&t->shown);
    if (t->wake_fd >= 0)
        close(t->wake_fd);
    if (t->keys_fd >= 0)
        close(t->keys_fd);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->started);
    free(t);
}

struct terminal *terminal_new(const struct terminal_options *options, const struct theme *theme, struct error *err)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        error_set(err, ERR_UNSUPPORTED, "standard input or output is not a terminal; use --batch");
        return NULL;
    }
    struct terminal *t = calloc(1, sizeof(*t));
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for the terminal");
        return NULL;
    }
    t->options = *options;
    t->theme = *theme;
    t->want_mouse = t->stderr_fd = t->notes_fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    clock_cond_init(&t->started);
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    t->keys_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (t->wake_fd < 0 || t->keys_fd < 0 || tcgetattr(STDIN_FILENO, &t->saved) != 0) {
        error_errno(err, "cannot take over the terminal");
        terminal_release(t);
        return NULL;
    }
    stderr_hide(t);
    if (thread_start(&t->thread, terminal_thread, t) != 0) {
        error_set(err, ERR_IO, "cannot start the terminal's thread");
        terminal_release(t);
        return NULL;
    }
    pthread_mutex_lock(&t->lock);
    while (!t->is_started)
        pthread_cond_wait(&t->started, &t->lock);
    pthread_mutex_unlock(&t->lock);
    if (t->start_err.code != ERR_NONE) {
        *err = t->start_err;
        pthread_join(t->thread, NULL);
        terminal_release(t);
        return NULL;
    }
    crash_watch(t, true);
    return t;
}

static void order(struct terminal *t)
{
    event_write(t->wake_fd);
}

void terminal_free(struct terminal *t)
{
    if (!t)
        return;
    crash_watch(t, false);
    struct timespec until = clock_after(STOP_LIMIT_S * 1000);
    pthread_mutex_lock(&t->lock);
    t->want_stop = true;
    order(t);
    int rc = 0;
    while (!t->is_done && rc == 0)
        rc = pthread_cond_timedwait(&t->started, &t->lock, &until);
    bool done = t->is_done;
    pthread_mutex_unlock(&t->lock);
    if (done) {
        pthread_join(t->thread, NULL);
        if (t->screen)
            delscreen(t->screen);
        tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
        terminal_release(t);
        return;
    }
    /* the thread hangs in write(): nobody reads the terminal. Discard the waiting output, restore the modes, and leave the thread
     * until the process ends; its memory must stay. */
    tcflush(STDOUT_FILENO, TCOFLUSH);
    tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
    pthread_detach(t->thread);
    stderr_show(t);
}

enum color_depth terminal_depth(const struct terminal *t)
{
    return t->depth;
}

int terminal_fd(const struct terminal *t)
{
    return t->keys_fd;
}

bool terminal_key(struct terminal *t, struct key_event *k)
{
    pthread_mutex_lock(&t->lock);
    bool any = t->n_key > 0;
    if (any) {
        *k = t->key[t->key_first];
        t->key_first = (t->key_first + 1) % KEYS_MAX;
        t->n_key--;
    } else {
        event_read(t->keys_fd);
    }
    pthread_mutex_unlock(&t->lock);
    return any;
}

void terminal_paste(struct terminal *t, char *text, size_t size)
{
    pthread_mutex_lock(&t->lock);
    snprintf(text, size, "%s", t->paste);
    pthread_mutex_unlock(&t->lock);
}

bool terminal_gone(const struct terminal *t)
{
    struct terminal *u = (struct terminal *)t;    // const except for the lock
    pthread_mutex_lock(&u->lock);
    bool gone = t->is_done;
    pthread_mutex_unlock(&u->lock);
    return gone;
}

void terminal_size(int *w, int *h)
{
    struct winsize size = { 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){ .ws_col = 80, .ws_row = 24 };
    *w = MIN(MAX(size.ws_col, 1), CELLS_MAX_SIDE);
    *h = MIN(MAX(size.ws_row, 1), CELLS_MAX_SIDE);
}

void terminal_frame(struct terminal *t, struct cells *frame)
{
    pthread_mutex_lock(&t->lock);
    struct cells old = t->frame;
    t->frame = *frame;
    *frame = old;
    t->has_frame = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void terminal_redraw(struct terminal *t)
{
    pthread_mutex_lock(&t->lock);
    t->want_redraw = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void terminal_bell(struct terminal *t)
{
    pthread_mutex_lock(&t->lock);
    t->want_bell = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void terminal_suspend(struct terminal *t)
{
    pthread_mutex_lock(&t->lock);
    t->want_suspend = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void terminal_mouse(struct terminal *t, bool on)
{
    pthread_mutex_lock(&t->lock);
    t->want_mouse = on;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void terminal_theme(struct terminal *t, const struct theme *theme)
{
    pthread_mutex_lock(&t->lock);
    t->theme = *theme;
    t->want_look = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}
