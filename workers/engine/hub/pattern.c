#include "workers/engine/hub/pattern.h"
#include <string.h>

#define PATH_BYTES_MAX 1000

/* Does c belong to the set that begins at p ('[')? *next: after it. A set that does not end is the character '['. */
static bool set_has(const char *p, char c, const char **next)
{
    const char *end = p[1] && p[1] != ']' ? strchr(p + 1, ']') : p[1] ? strchr(p + 2, ']') : NULL;
    bool negated = p[1] == '!' || p[1] == '^', has = false;
    *next = end ? end + 1 : p + 1;
    if (!end)
        return c == '[';
    for (const char *q = p + 1 + negated; q < end; q++) {
        bool range = q[1] == '-' && q + 2 < end;
        has |= range ? *q <= c && c <= q[2] : *q == c;
        q += range ? 2 : 0;
    }
    return c != '/' && has != negated;
}

bool path_matches(const char *pattern, const char *path)
{
    size_t n = strlen(path);
    bool fits[PATH_BYTES_MAX + 1] = { true };    // fits[i]: the pattern so far fits the first i characters
    if (n > PATH_BYTES_MAX)
        return false;
    for (const char *p = pattern, *next; *p; p = next) {
        bool over = p[0] == '*' && p[1] == '*', folders = over && p[2] == '/', before = fits[0];
        next = p + 1;
        if (p[0] == '*') {
            bool open = fits[0];    // some shorter part fits, and the star can go on from there
            next = p + 1 + over + folders;
            for (size_t i = 1; i <= n; i++) {
                bool was = fits[i];
                if (!over && path[i - 1] == '/')
                    open = false;
                open |= !folders && was;
                fits[i] = folders ? was || (open && path[i - 1] == '/') : open;
                open |= was;
            }
            continue;
        }
        fits[0] = false;
        for (size_t i = 1; i <= n; i++) {
            bool was = fits[i], same = p[0] == '?'   ? path[i - 1] != '/'
                                       : p[0] == '[' ? set_has(p, path[i - 1], &next)
                                                     : p[0] == path[i - 1];
            fits[i] = before && same;
            before = was;
        }
        if (p[0] == '[' && n == 0)
            set_has(p, 0, &next);
    }
    return fits[n];
}
