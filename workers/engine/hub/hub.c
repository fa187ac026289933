#include "workers/engine/hub/hub.h"
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"

bool hub_cache_dir(char *out, size_t size, struct error *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {
        { "HF_HUB_CACHE", "" },
        { "HUGGINGFACE_HUB_CACHE", "" },
        { "HF_HOME", "/hub" },
        { "XDG_CACHE_HOME", "/huggingface/hub" },
        { "HOME", "/.cache/huggingface/hub" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        const char *at = getenv(places[i].variable);
        if (!at || !at[0])
            continue;
        if (snprintf(out, size, "%s%s", at, places[i].below) >= (int)size)
            return error_set(err, ERR_IO, "the path in $%s is too long", places[i].variable);
        return true;
    }
    return error_set(err, ERR_NOT_FOUND, "no folder for the hub's cache: set HF_HOME");
}

bool hub_name_ok(const char *name)
{
    int slashes = 0;
    size_t len = strlen(name);
    if (len == 0 || len > 200 || strstr(name, "..") || strstr(name, "--"))
        return false;
    for (const char *p = name; *p; p++) {
        bool edge = p == name || p[1] == 0 || p[-1] == '/' || p[1] == '/';
        if (*p == '/' ? ++slashes > 1 || edge : !isalnum((unsigned char)*p) && (edge ? *p != '_' : !strchr("-_.", *p)))
            return false;
    }
    return true;
}

/* The folder of a repository in the cache. */
bool hub_repo_dir(char *out, size_t size, const char *name, struct error *err)
{
    char cache[PATH_MAX];
    if (!hub_cache_dir(cache, sizeof cache, err))
        return false;
    const char *slash = strchr(name, '/');
    int n = slash ? snprintf(out, size, "%s/models--%.*s--%s", cache, (int)(slash - name), name, slash + 1)
                  : snprintf(out, size, "%s/models--%s", cache, name);
    return (n >= 0 && (size_t)n < size) || error_set(err, ERR_IO, "the path of '%s' in the cache is too long", name);
}

bool hub_revision_ok(const char *revision)
{
    size_t len = strlen(revision);
    if (len == 0 || len > 200 || revision[0] == '/' || revision[len - 1] == '/' || strstr(revision, "..") || strstr(revision, "//"))
        return false;
    return strspn(revision, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+") == len;
}

/* The commit that refs/REVISION names, into out; false when there is none. */
static bool ref_read(char *out, size_t size, const char *repo, const char *revision)
{
    char path[PATH_MAX];
    struct buf text = { .max = 1 << 17 };
    struct error ignored;    // a missing file only means that the revision is a commit, or absent
    bool ok = false;
    if (snprintf(path, sizeof path, "%s/refs/%s", repo, revision) < (int)sizeof path && path_exists(path)
        && file_read(&text, path, 1024, &ignored)) {
        size_t n = strcspn(buf_text(&text), " \r\n\t/");
        ok = n > 0 && n < size && buf_text(&text)[0] != '.';
        if (ok)
            snprintf(out, size, "%.*s", (int)n, buf_text(&text));
    }
    buf_release(&text);
    return ok;
}

bool hub_find(char *out, size_t size, const char *name, const char *revision, struct error *err)
{
    char repo[PATH_MAX], commit[256];
    if (path_exists(name) && !revision)
        return snprintf(out, size, "%s", name) < (int)size || error_set(err, ERR_IO, "the path '%s' is too long", name);
    if (!hub_name_ok(name))
        return error_set(err, ERR_NOT_FOUND, "'%s' is neither a file, a directory nor the name of a model on the hub", name);
    if (!revision)
        revision = "main";
    if (!hub_revision_ok(revision))
        return error_set(err, ERR_USAGE, "'%s' cannot be a revision", revision);
    if (!hub_repo_dir(repo, sizeof repo, name, err))
        return false;
    if (!ref_read(commit, sizeof commit, repo, revision))
        snprintf(commit, sizeof commit, "%s", revision);
    int n = snprintf(out, size, "%s/snapshots/%s", repo, commit);
    if (n < 0 || (size_t)n >= size)
        return error_set(err, ERR_IO, "the path of '%s' in the cache is too long", name);
    if (path_is_dir(out))
        return true;
    return error_set(err, ERR_NOT_FOUND, "no directory '%s', and revision '%s' is not in the cache '%s'; 'rollcall pull %s' gets it", name,
                     revision, repo, name);
}
