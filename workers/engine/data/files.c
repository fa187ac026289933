#include "workers/engine/data/files.h"
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "workers/engine/hub/hub.h"
#include "workers/engine/hub/hub_data.h"

#define FILES_MAX 10000
#define DEPTH_MAX 8

static bool file_add(struct data_files *f, const char *path, struct error *err)
{
    if (f->n == FILES_MAX)
        return error_set(err, ERR_DATA, "more than %d files of data; name fewer, or put them together", FILES_MAX);
    char **more = realloc(f->path, (size_t)(f->n + 1) * sizeof *more), *copy = strdup(path);
    if (more)
        f->path = more;
    if (!more || !copy) {
        free(copy);
        return error_set(err, ERR_NO_MEMORY, "no memory for the names of the data's files");
    }
    f->path[f->n++] = copy;
    return true;
}

/* All files below root, by their paths relative to it, each folder in alphabetical order. */
static bool folder_walk(struct hub_names *names, const char *root, const char *below, int depth, struct error *err)
{
    char dir[PATH_MAX], path[PATH_MAX], full[PATH_MAX];
    struct dirent **entry = NULL;
    if (depth > DEPTH_MAX)
        return error_set(err, ERR_DATA, "'%s' has folders more than %d levels deep", root, DEPTH_MAX);
    int n = path_join(dir, sizeof dir, root, below) ? scandir(dir, &entry, NULL, alphasort) : -1;
    bool ok = n >= 0 || error_errno(err, "cannot list '%s'", dir);
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        bool fits = snprintf(path, sizeof path, "%s%s%s", below, below[0] ? "/" : "", name) < (int)sizeof path
                    && path_join(full, sizeof full, root, path);
        if (ok && name[0] != '.' && fits)
            ok = path_is_dir(full) ? folder_walk(names, root, path, depth + 1, err) : hub_names_add(names, path, err);
        free(entry[i]);
    }
    free(entry);
    return ok;
}

/* The data files of a folder, by the hub's rules: what its README says, else how files are named. */
static bool folder_find(struct data_files *f, const char *root, const char *config, const char *split, const char *shown, struct error *err)
{
    char path[PATH_MAX];
    struct hub_names all = { 0 };
    struct buf readme = { .max = 1 << 24 };
    bool ok = false;
    TRY(folder_walk(&all, root, "", 0, err));
    if (path_join(path, sizeof path, root, "README.md") && path_exists(path) && !path_is_dir(path))
        TRY(file_read(&readme, path, 8 << 20, err));
    TRY(hub_data_select(&all, buf_text(&readme), readme.len, config, split, shown, err));
    for (int i = 0; i < all.n; i++)
        if (all.wanted[i])
            TRY((path_join(path, sizeof path, root, all.name[i])
                 || error_set(err, ERR_IO, "the path '%s/%s' is too long", root, all.name[i]))
                && file_add(f, path, err));
    ok = true;
out:
    hub_names_release(&all);
    buf_release(&readme);
    return ok;
}

/* Missing folders count as empty; unreadable ones end the search. */
static int folder_refused(UNUSED const char *path, int why)
{
    errno = why;
    return why != ENOENT && why != ENOTDIR;
}

static bool pattern_find(struct data_files *f, const char *pattern, struct error *err)
{
    glob_t g = { 0 };
    int got = glob(pattern, 0, folder_refused, &g);
    bool ok = true;
    if (got == GLOB_NOMATCH)
        ok = error_set(err, ERR_NOT_FOUND, "no file matches the pattern '%s'", pattern);
    else if (got != 0)
        ok = error_errno(err, "cannot look for '%s'", pattern);
    for (size_t i = 0; ok && got == 0 && i < g.gl_pathc; i++)
        ok = path_is_dir(g.gl_pathv[i]) || file_add(f, g.gl_pathv[i], err);
    if (ok && f->n == 0)
        ok = error_set(err, ERR_NOT_FOUND, "the pattern '%s' matches only folders", pattern);
    globfree(&g);
    return ok;
}

static bool hub_find_data(struct data_files *f, const struct hub_data *h, const char *name, struct error *err)
{
    char dir[PATH_MAX];
    return hub_find_dataset(dir, sizeof dir, h->name, h->revision[0] ? h->revision : NULL, err)
           && folder_find(f, dir, h->config, h->split, name, err);
}

/* Does name mean a data set of the hub? Not when there is a file of that name. */
static bool is_hub(struct hub_data *h, const char *name)
{
    return !path_exists(name) && !strpbrk(name, "*?[") && name[0] != '/' && name[0] != '.' && hub_data_parse(h, name);
}

bool data_name_pin(char *name, size_t size, struct error *err)
{
    struct hub_data h;
    char dir[PATH_MAX];
    if (!is_hub(&h, name))
        return true;
    if (!hub_find_dataset(dir, sizeof dir, h.name, h.revision[0] ? h.revision : NULL, err))
        return false;
    const char *commit = strrchr(dir, '/') + 1;
    snprintf(h.revision, sizeof h.revision, "%.200s", commit);
    return hub_data_print(name, size, &h) || error_set(err, ERR_USAGE, "the name '%s' is too long", h.name);
}

bool data_files_find(struct data_files *f, const char *name, struct error *err)
{
    struct hub_data h;
    bool ok;
    *f = (struct data_files){ 0 };
    if (path_is_dir(name))
        ok = folder_find(f, name, "", "", name, err);
    else if (path_exists(name))
        ok = file_add(f, name, err);
    else if (strpbrk(name, "*?["))
        ok = pattern_find(f, name, err);
    else if (is_hub(&h, name))
        ok = hub_find_data(f, &h, name, err);
    else
        ok = error_set(err, ERR_NOT_FOUND,
                       "there is no file '%s'; data are a file, a folder, a pattern, or a data set of the hub as "
                       "ORG/NAME[:CONFIG][:SPLIT], which 'rollcall pull --dataset' gets",
                       name);
    if (!ok)
        data_files_release(f);
    return ok;
}

void data_files_release(struct data_files *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->path[i]);
    free(f->path);
    *f = (struct data_files){ 0 };
}
