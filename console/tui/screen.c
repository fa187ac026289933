#include "console/tui/screen.h"
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* "15;0" (rxvt, konsole and others): foreground, background as palette numbers. */
static const char *theme_default(void)
{
    const char *fgbg = getenv("COLORFGBG");
    const char *last = fgbg ? strrchr(fgbg, ';') : NULL;
    return last && (strcmp(last, ";7") == 0 || strcmp(last, ";15") == 0) ? "light" : "dark";
}

static enum chart_glyphs glyphs_default(void)
{
    const char *term = getenv("TERM");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        return GLYPHS_ASCII;
    return term && strcmp(term, "linux") == 0 ? GLYPHS_BLOCK : GLYPHS_BRAILLE;    // the kernel's font has no braille
}

void screen_signals_block(sigset_t *set, sigset_t *before)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT };
    sigemptyset(set);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        sigaddset(set, signals[i]);
    pthread_sigmask(SIG_BLOCK, set, before);
}

bool screen_open(struct screen *s, const struct console_options *options, struct error *err)
{
    struct error theme_err = { 0 };
    sigset_t set;
    bool ok = false;
    *s = (struct screen){ .signal_fd = -1 };
    setlocale(LC_CTYPE, "");
    screen_signals_block(&set, &s->before);
    s->glyphs = options->glyphs >= 0 ? (enum chart_glyphs)options->glyphs : glyphs_default();
    s->ascii = s->glyphs == GLYPHS_ASCII;
    if (!theme_load(&s->theme, options->theme ? options->theme : theme_default(), &theme_err)) {
        if (options->theme) {
            *err = theme_err;
            goto out;
        }
        theme_init(&s->theme);    // no theme was requested by name: use the built-in one
        snprintf(s->theme_note, sizeof(s->theme_note), "%s", theme_err.text);
    }
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signal_fd < 0) {
        error_errno(err, "cannot receive signals");
        goto out;
    }
    s->term = terminal_new(&options->terminal, &s->theme, err);
    ok = s->term != NULL;
out:
    if (!ok)
        screen_close(s);
    return ok;
}

void screen_close(struct screen *s)
{
    terminal_free(s->term);
    cells_release(&s->cells);
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
    s->term = NULL;
    s->signal_fd = -1;
}

void screen_draw(struct screen *s)
{
    if (s->ascii)
        cells_ascii(&s->cells);
    terminal_frame(s->term, &s->cells);
}

unsigned screen_signals(struct screen *s)
{
    struct signalfd_siginfo info;
    unsigned news = 0;
    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        news |= info.ssi_signo == SIGWINCH || info.ssi_signo == SIGCONT ? SCREEN_RESIZED : SCREEN_QUIT;
        if (info.ssi_signo == SIGCONT)
            terminal_redraw(s->term);
    }
    return news;
}
