#include "protocol/wire/join_rotation.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"

#define BEFORE_BYTES_MAX 1024
#define REPLACED_MAX 64    // names of tokens kept in a node's file, the newest

static bool beside(char out[PATH_MAX], const char *path, const char *end, struct error *err)
{
    int n = snprintf(out, PATH_MAX, "%s%s", path, end);
    return (n > 0 && n < PATH_MAX) || error_set(err, ERR_USAGE, "the path '%s' is too long", path);
}

bool join_before_read(struct join_before *b, const char *path, struct error *err)
{
    char file[PATH_MAX], token[JOIN_TOKEN_LEN + 2];
    struct buf text = BUF_INIT;
    *b = (struct join_before){ 0 };
    if (!beside(file, path, ".before", err))
        return false;
    if (!path_exists(file))
        return true;
    if (!file_read_text(&text, file, BEFORE_BYTES_MAX, err))
        return false;
    bool ok = sscanf(buf_text(&text), "%65s %lf %519s", token, &b->until_s, b->commands) == 3 && isfinite(b->until_s)
              && join_token_check(token, err);
    buf_release(&text);
    if (!ok) {
        *b = (struct join_before){ 0 };
        return error_set(err, ERR_DATA,
                         "'%s' does not say which join token was replaced; remove it, and the old token is no longer accepted", file);
    }
    memcpy(b->token, token, sizeof b->token);
    return true;
}

bool join_before_write(const char *path, const struct join_before *b, struct error *err)
{
    char file[PATH_MAX], text[BEFORE_BYTES_MAX];
    int n = snprintf(text, sizeof text, "%s %.3f %s\n", b->token, b->until_s, b->commands[0] ? b->commands : "-");
    return beside(file, path, ".before", err) && file_write_secret(file, text, (size_t)n, err);
}

bool join_before_forget(const char *path, struct error *err)
{
    char file[PATH_MAX];
    return beside(file, path, ".before", err) && (unlink(file) == 0 || errno == ENOENT || error_errno(err, "cannot remove '%s'", file));
}

bool join_token_replace(const char *path, const char *token, const struct join_before *b, struct error *err)
{
    return join_before_write(path, b, err) && join_token_write(path, token, err);
}

/* The names in a node's file, one per line, oldest first; an absent or unreadable file has none. */
static void replaced_read(struct buf *names, const char *path)
{
    char file[PATH_MAX];
    struct error none;
    if (!beside(file, path, ".replaced", &none) || !file_read_text(names, file, (size_t)4 * REPLACED_MAX * (JOIN_TOKEN_ID_LEN + 1), &none))
        buf_clear(names);
}

bool join_token_was_replaced(const char *path, const char *token)
{
    char id[JOIN_TOKEN_ID_LEN + 1];
    struct error none;
    struct buf names = BUF_INIT;
    replaced_read(&names, path);
    bool was = join_token_id(id, token, &none) && strstr(buf_text(&names), id);
    buf_release(&names);
    return was;
}

bool join_token_follow(const char *path, const char *token, const char *before, struct error *err)
{
    char file[PATH_MAX], id[JOIN_TOKEN_ID_LEN + 1];
    struct buf names = BUF_INIT;
    replaced_read(&names, path);
    bool ok = beside(file, path, ".replaced", err) && join_token_id(id, before, err);
    if (ok && !strstr(buf_text(&names), id)) {
        const char *from = buf_text(&names);
        if (names.len >= (size_t)REPLACED_MAX * (JOIN_TOKEN_ID_LEN + 1))
            from += JOIN_TOKEN_ID_LEN + 1;
        struct buf all = BUF_INIT;
        ok = buf_fmt(&all, "%s%s\n", from, id) ? file_write_secret(file, all.data, all.len, err)
                                               : error_set(err, ERR_NO_MEMORY, "no memory for '%s'", file);
        buf_release(&all);
    }
    buf_release(&names);
    return ok && join_token_write(path, token, err);
}
