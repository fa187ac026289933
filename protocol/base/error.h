/* error.h - what went wrong, in one sentence, and what kind of thing it is
 *
 * The caller owns a struct error and passes it last; a function that fails fills it and returns false or NULL, one that
 * succeeds leaves it untouched. Reporting needs no memory, so out-of-memory can be reported too. Any thread. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include "protocol/base/macros.h"

#define ERROR_TEXT_BYTES 1024

enum error_code {
    ERR_NONE,
    ERR_USAGE,    // the command line or a setting is wrong: exit 2
    ERR_DATA,     // a file, message or answer does not hold what it must
    ERR_IO,       // the operating system refused
    ERR_NO_MEMORY,
    ERR_SHAPE,    // sizes that do not match
    ERR_FULL,     // a bounded thing has no room
    ERR_NOT_FOUND,
    ERR_EXISTS,    // would overwrite something
    ERR_TIMEOUT,
    ERR_CLOSED,     // the other side has gone
    ERR_REFUSED,    // understood and declined
    ERR_STOPPED,    // an operator or a signal ended it: exit 3
    ERR_UNSUPPORTED,
    ERR_CONTEXT,    // more tokens than the model's context holds
    ERR_INTERNAL,
};
struct error {
    enum error_code code;
    char text[ERROR_TEXT_BYTES];    // one sentence, no capital, no full stop; cut with ... when longer
};

/* Fill err; always returns false, so that a function can say: return error_set(err, ...). */
bool error_set(struct error *err, enum error_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As error_set, followed by ": " and the text of errno (saved on entry), and by what to do where a limit is reached; the code is
 * ERR_NO_MEMORY for ENOMEM, else ERR_IO. */
bool error_errno(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Prefix err's text with what the caller knows: "while ...: text". Returns false. */
bool error_wrap(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The text for somebody elsewhere, who need not know this machine's folders: each absolute path keeps only its last name. */
void error_tell(const struct error *err, char out[ERROR_TEXT_BYTES]);
/* The exit status for a code: 0 none, 2 usage, 3 stopped, 1 all others. */
int error_exit_status(enum error_code code);
/* "usage", "data", ... for messages on the wire and logs. */
const char *error_code_name(enum error_code code);

/* A broken invariant of ours: say where and with which values, and abort; in release builds too. */
#define BUG_IF(cond, ...)                                                                                                                  \
    do {                                                                                                                                   \
        if (__builtin_expect(!!(cond), 0))                                                                                                 \
            bug_found(__FILE__, __LINE__, #cond, __VA_ARGS__);                                                                             \
    } while (0)
void bug_found(const char *file, int line, const char *cond, const char *fmt, ...) PRINTF_LIKE(4, 5) __attribute__((noreturn, cold));
