#include "protocol/base/error.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that does not fit ends in "..." so that nobody mistakes it for the whole text. */
static void text_mark_cut(struct error *err, int n)
{
    if (n >= (int)sizeof err->text)
        memcpy(err->text + sizeof err->text - 4, "...", 4);
}

bool error_set(struct error *err, enum error_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    text_mark_cut(err, vsnprintf(err->text, sizeof err->text, fmt, ap));
    va_end(ap);
    return false;
}

/* What to do about an errno that says that a limit is reached, as the end of a sentence. */
static const char *limit_advice(int code)
{
    if (code == EMFILE)
        return "; raise the limit of open files ('ulimit -n')";
    return code == EFBIG ? "; raise the limit of a file's size ('ulimit -f')" : "";
}

bool error_errno(struct error *err, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->code = saved == ENOMEM ? ERR_NO_MEMORY : ERR_IO;
    if (n >= 0 && n < (int)sizeof err->text) {
        char why[128];
        n += snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s%s", strerror_r(saved, why, sizeof why), limit_advice(saved));
    }
    text_mark_cut(err, n);
    return false;
}

bool error_wrap(struct error *err, const char *fmt, ...)
{
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && n < (int)sizeof err->text)
        n += snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old);
    text_mark_cut(err, n);
    return false;
}

/* The length of the absolute path that begins at s, after this character; 0: none does. A route is none. */
static size_t path_len(const char *s, char before)
{
    if (*s != '/' || !strchr(" '\"(=", before) || strncmp(s, "/v1/", 4) == 0)
        return 0;
    return before == '\'' || before == '"' ? strcspn(s, before == '"' ? "\"" : "'") : strcspn(s, " '\"():,;");
}

void error_tell(const struct error *err, char out[ERROR_TEXT_BYTES])
{
    size_t n = 0;
    char before = ' ';
    for (const char *s = err->text; *s;) {
        size_t len = path_len(s, before);
        const char *name = s;
        for (size_t i = 1; i + 1 < len; i++)
            if (s[i] == '/' && s[i + 1] != '/')
                name = s + i + 1;
        for (const char *end = s + MAX(len, (size_t)1); name < end; name++)
            before = out[n++] = *name;
        s = name;
    }
    out[n] = 0;
}

int error_exit_status(enum error_code code)
{
    return code == ERR_NONE ? 0 : code == ERR_USAGE ? 2 : code == ERR_STOPPED ? 3 : 1;
}

const char *error_code_name(enum error_code code)
{
    static const char *const names[] = {
        [ERR_NONE] = "none",           [ERR_USAGE] = "usage",
        [ERR_DATA] = "data",           [ERR_IO] = "io",
        [ERR_NO_MEMORY] = "no_memory", [ERR_SHAPE] = "shape",
        [ERR_FULL] = "full",           [ERR_NOT_FOUND] = "not_found",
        [ERR_EXISTS] = "exists",       [ERR_TIMEOUT] = "timeout",
        [ERR_CLOSED] = "closed",       [ERR_REFUSED] = "refused",
        [ERR_STOPPED] = "stopped",     [ERR_UNSUPPORTED] = "unsupported",
        [ERR_CONTEXT] = "context",     [ERR_INTERNAL] = "internal",
    };
    return (size_t)code < ARRAY_SIZE(names) ? names[code] : "unknown";
}

void bug_found(const char *file, int line, const char *cond, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "rollcall: bug at %s:%d (%s): ", file, line, cond);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}
