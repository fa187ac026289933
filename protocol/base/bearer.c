#include "protocol/base/bearer.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/file.h"

bool bearer_read(char token[BEARER_MAX], const char *path, struct error *err)
{
    struct buf b = BUF_INIT;
    bool ok = file_read_text(&b, path, BEARER_MAX - 1, err);
    size_t len = strcspn(buf_text(&b), "\r\n");
    if (ok && len == 0)
        ok = error_set(err, ERR_DATA, "'%s' holds no token", path);
    if (ok)
        snprintf(token, BEARER_MAX, "%.*s", (int)len, buf_text(&b));
    buf_release(&b);
    return ok;
}

bool bearer_is_key(const char *token, const char *key)
{
    if (!key)
        return false;
    size_t want_len = strlen(token), len = strlen(key);
    unsigned char diff = want_len != len;
    for (size_t i = 0; i < len && i < BEARER_MAX; i++)
        diff |= (unsigned char)(key[i] ^ token[i % (want_len ? want_len : 1)]);
    return diff == 0;
}

bool bearer_matches(const char *token, const char *header)
{
    return header && strncasecmp(header, "Bearer ", 7) == 0 && bearer_is_key(token, header + 7);
}
