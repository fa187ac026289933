#include "protocol/run/run_far.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/run/node.h"
#include "protocol/wire/join_token.h"
#include "protocol/wire/run_head.h"

bool run_far_token(char token[JOIN_TOKEN_LEN + 1], const char *token_file, struct error *err)
{
    char text[JOIN_TOKEN_LEN + 64];
    const char *variable = getenv("ROLLCALL_JOIN_TOKEN");
    if (token_file)
        return join_token_read(token, token_file, err);
    if (!variable || !variable[0])
        return error_set(err, ERR_USAGE,
                         "--connect needs a token of the run: --token-file FILE (a copy of the run's sock/join), or "
                         "ROLLCALL_JOIN_TOKEN");
    snprintf(text, sizeof text, "%s", variable);
    if (!join_token_check(text, err))
        return error_wrap(err, "ROLLCALL_JOIN_TOKEN");
    memcpy(token, text, JOIN_TOKEN_LEN + 1);
    return true;
}

bool run_far_open(struct run_far *f, const char *address, const char *token_file, struct error *err)
{
    static const char *const folders[] = { "sock", "logs", LAUNCH_FOLDER };
    char token[JOIN_TOKEN_LEN + 1], path[PATH_MAX];
    const char *tmp = getenv("XDG_RUNTIME_DIR");
    struct run_head head = { .host = "-", .n_address = 1 };    // no host has this name
    *f = (struct run_far){ 0 };
    if (!node_address(address, "--connect", head.address[0], err) || !run_far_token(token, token_file, err))
        return false;
    if (!tmp || !tmp[0] || access(tmp, W_OK) != 0)
        tmp = getenv("TMPDIR");
    int n = snprintf(f->top, sizeof f->top, "%s/rollcall-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof f->top || !mkdtemp(f->top)) {
        f->top[0] = 0;
        return error_errno(err, "cannot make a folder in '%s'", tmp && tmp[0] ? tmp : "/tmp");
    }
    snprintf(f->dir, sizeof f->dir, "%s/%s", f->top, head.address[0]);
    bool ok = true;
    for (size_t i = 0; i < ARRAY_SIZE(folders) && ok; i++)
        ok = path_join(path, sizeof path, f->dir, folders[i]) && dir_make(path, 0700, err);
    ok = ok && path_join(path, sizeof path, f->dir, NODE_TOKEN_FILE) && join_token_write(path, token, err)
         && run_head_write(&head, f->dir, err);
    if (!ok)
        run_far_close(f);
    return ok;
}

void run_far_close(struct run_far *f)
{
    struct error err;
    if (f->top[0] && !dir_remove(f->top, &err))
        fprintf(stderr, "%s\n", err.text);
    *f = (struct run_far){ 0 };
}
