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
    };
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        const char *at = getenv(places[i].variable);
        if (!at || !at[0])
            continue;
        if (snprintf(out, size, "%s%s", at, places[i].below) >= (int)size)
            return error_set(err, ERR_IO, "the path in $%s is too long", places[i].variable);
        return true;
    }
    return cache_path(out, size, "huggingface/hub") || error_set(err, ERR_NOT_FOUND, "no folder for the hub's cache: set HF_HOME");
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
bool hub_repo_dir(char *out, size_t size, enum hub_kind kind, const char *name, struct error *err)
{
    const char *kinds = kind == HUB_DATASET ? "datasets" : "models";
    char cache[PATH_MAX];
    if (!hub_cache_dir(cache, sizeof cache, err))
        return false;
    const char *slash = strchr(name, '/');
    int n = slash ? snprintf(out, size, "%s/%s--%.*s--%s", cache, kinds, (int)(slash - name), name, slash + 1)
                  : snprintf(out, size, "%s/%s--%s", cache, kinds, name);
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

/* The folder of a revision into out, and the repository's into repo; whether it is there. */
static bool snapshot_find(char *out, size_t size, char repo[PATH_MAX], enum hub_kind kind, const char *name, const char *revision,
                          struct error *err)
{
    char commit[256];
    if (!hub_revision_ok(revision))
        return error_set(err, ERR_USAGE, "'%s' cannot be a revision", revision);
    if (!hub_repo_dir(repo, PATH_MAX, kind, name, err))
        return false;
    if (!ref_read(commit, sizeof commit, repo, revision))
        snprintf(commit, sizeof commit, "%s", revision);
    int n = snprintf(out, size, "%s/snapshots/%s", repo, commit);
    if (n < 0 || (size_t)n >= size)
        return error_set(err, ERR_IO, "the path of '%s' in the cache is too long", name);
    return path_is_dir(out) || error_set(err, ERR_NOT_FOUND, "revision '%s' is not in the cache '%s'", revision, repo);
}

bool hub_find(char *out, size_t size, const char *name, const char *revision, struct error *err)
{
    char repo[PATH_MAX];
    struct error why = { 0 };
    if (path_exists(name) && !revision)
        return snprintf(out, size, "%s", name) < (int)size || error_set(err, ERR_IO, "the path '%s' is too long", name);
    if (!hub_name_ok(name))
        return error_set(err, ERR_NOT_FOUND, "'%s' is neither a file, a directory nor the name of a model on the hub", name);
    revision = revision ? revision : "main";
    if (snapshot_find(out, size, repo, HUB_MODEL, name, revision, &why))
        return true;
    if (why.code != ERR_NOT_FOUND) {
        *err = why;
        return false;
    }
    return error_set(err, ERR_NOT_FOUND, "no directory '%s', and revision '%s' is not in the cache '%s'; 'rollcall pull %s' gets it", name,
                     revision, repo, name);
}

bool hub_find_dataset(char *out, size_t size, const char *name, const char *revision, struct error *err)
{
    char repo[PATH_MAX];
    struct error why = { 0 };
    if (!hub_name_ok(name))
        return error_set(err, ERR_NOT_FOUND, "'%s' cannot be the name of a data set on the hub", name);
    if (snapshot_find(out, size, repo, HUB_DATASET, name, revision ? revision : "main", &why))
        return true;
    if (why.code != ERR_NOT_FOUND) {
        *err = why;
        return false;
    }
    return error_set(err, ERR_NOT_FOUND,
                     "there is no file '%s', and no data set of that name at revision '%s' in the cache '%s'; "
                     "'rollcall pull --dataset %s%s%s' gets it",
                     name, revision ? revision : "main", repo, name, revision ? " --revision " : "", revision ? revision : "");
}
