/* pty.h - a program on a terminal of our own, for tests and screenshots: keys in, the screen it draws out
 *
 * The terminal is libvterm's; the program runs in a pseudo-terminal as its controlling one. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <vterm.h>

struct pty {
    int master;
    pid_t pid;
    int rows, cols;
    VTerm *vt;
    VTermScreen *screen;
    int64_t bytes_out;    // drawn by the program so far
    bool ended;           // the program has closed its side
    bool fixed;           // the terminal keeps its size, pty_resize tells only the program: libvterm 0.1.4 corrupts its
                          // memory in storms of tiny resizes
};
/* Start argv (found by PATH or with a '/') with these additional environment settings ("NAME=VALUE", "NAME" removes; NULL ends). */
bool pty_start(struct pty *p, int cols, int rows, const char *const *env, char *const *argv);
void pty_resize(struct pty *p, int cols, int rows);
void pty_type(struct pty *p, const char *bytes);    // as if typed
void pty_send(struct pty *p, const char *bytes, int len);
/* Read what is drawn for ms milliseconds, or until nothing has come for quiet_ms (0: the whole time). */
void pty_read(struct pty *p, int ms, int quiet_ms);
/* Read until a row holds text (UTF-8), at most limit_s seconds. */
bool pty_wait(struct pty *p, const char *text, int limit_s);
bool pty_wait_gone(struct pty *p, const char *text, int limit_s);    // until none does
/* Row y as UTF-8, blanks at its end cut. Static memory, overwritten by the next call. */
const char *pty_row(struct pty *p, int y);
bool pty_shows(struct pty *p, const char *text);
/* The first row in y..end-1 whose cells - characters, attributes, colours - differ between terminals of one size; -1: none. */
int pty_row_differs(const struct pty *a, const struct pty *b, int y, int end);
void pty_print(struct pty *p);    // the screen to stderr, for failed tests
/* Close the terminal and wait for the program; its exit status, 128 + signal when killed. It is killed after limit_s. */
int pty_finish(struct pty *p, int limit_s, bool close_first);
