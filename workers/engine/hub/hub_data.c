#include "workers/engine/hub/hub_data.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "workers/engine/hub/hub.h"
#include "workers/engine/hub/hub_readme.h"
#include "workers/engine/hub/pattern.h"

#define SPLITS_MAX 64

/* ---- names ---- */

/* Does a path end as data files' names do? Compressed ones have a second ending. */
static bool is_data_name(const char *path)
{
    static const char *const endings[] = { ".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv" }, *const packed[] = { "", ".gz",
                                                                                                                           ".zst" };
    static const char *const others[] = { "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json" };
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char ending[24];
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    for (size_t i = 0; i < ARRAY_SIZE(endings) * ARRAY_SIZE(packed); i++) {
        int n = snprintf(ending, sizeof ending, "%s%s", endings[i / ARRAY_SIZE(packed)], packed[i % ARRAY_SIZE(packed)]);
        size_t len = strlen(name);
        if (len > (size_t)n && strcasecmp(name + len - (size_t)n, ending) == 0)
            return true;
    }
    return false;
}

static bool is_hidden(const char *path)
{
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (part[0] == '.' || (part[0] == '_' && part[1] == '_' && strchr(part, '/')))
            return true;
    return false;
}

static bool word_take(char *out, size_t size, const char **p)
{
    size_t n = strcspn(*p, ":");
    bool ok = n < size && strspn(*p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") >= n;
    if (ok)
        snprintf(out, size, "%.*s", (int)n, *p);
    *p += n + ((*p)[n] == ':');
    return ok;
}

bool hub_data_parse(struct hub_data *h, const char *text)
{
    size_t n = strcspn(text, "@:");
    const char *p = text + n;
    *h = (struct hub_data){ 0 };
    if (n >= sizeof h->name)
        return false;
    memcpy(h->name, text, n);
    if (!strchr(h->name, '/') || !hub_name_ok(h->name) || is_data_name(h->name))
        return false;
    if (*p == '@') {
        n = strcspn(++p, ":");
        if (n >= sizeof h->revision)
            return false;
        memcpy(h->revision, p, n);
        p += n;
        if (!hub_revision_ok(h->revision))
            return false;
    }
    p += *p == ':';
    return word_take(h->config, sizeof h->config, &p) && word_take(h->split, sizeof h->split, &p) && !*p;
}

bool hub_data_print(char *out, size_t size, const struct hub_data *h)
{
    bool more = h->split[0];
    int n = snprintf(out, size, "%s%s%s%s%s%s%s", h->name, h->revision[0] ? "@" : "", h->revision, h->config[0] || more ? ":" : "",
                     h->config, more ? ":" : "", h->split);
    return n >= 0 && (size_t)n < size;
}

bool hub_names_add(struct hub_names *names, const char *name, struct error *err)
{
    if (names->n == names->cap) {
        int cap = MAX(2 * names->cap, 64);
        char **more = realloc(names->name, (size_t)cap * sizeof *more);
        if (more)
            names->name = more;
        bool *wanted = realloc(names->wanted, (size_t)cap * sizeof *wanted);
        if (wanted)
            names->wanted = wanted;
        if (!more || !wanted)
            return error_set(err, ERR_NO_MEMORY, "no memory for the names of %d files", cap);
        names->cap = cap;
    }
    char *copy = strdup(name);
    if (!copy)
        return error_set(err, ERR_NO_MEMORY, "no memory for the names of files");
    names->wanted[names->n] = false;
    names->name[names->n++] = copy;
    return true;
}

void hub_names_release(struct hub_names *names)
{
    for (int i = 0; i < names->n; i++)
        free(names->name[i]);
    free(names->name);
    free(names->wanted);
    *names = (struct hub_names){ 0 };
}

/* ---- splits by names ---- */

/* Words that say which split a file or folder is of. */
static const struct {
    const char *word, *split;
} keywords[] = {
    { "train", "train" },    { "training", "train" }, { "validation", "validation" }, { "valid", "validation" }, { "dev", "validation" },
    { "val", "validation" }, { "test", "test" },      { "testing", "test" },          { "eval", "test" },        { "evaluation", "test" },
};

static bool is_mark(char c)
{
    return (c && strchr("-._ ", c)) || isdigit((unsigned char)c);
}

/* The split that a name of len characters says with a word between marks, or NULL. */
static const char *split_in(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(keywords); i++) {
        size_t n = strlen(keywords[i].word);
        for (size_t at = 0; at + n <= len; at++)
            if (strncasecmp(name + at, keywords[i].word, n) == 0 && (at == 0 || is_mark(name[at - 1]))
                && (at + n == len || is_mark(name[at + n])))
                return keywords[i].split;
    }
    return NULL;
}

/* data/SPLIT-NNNNN-of-NNNNN...: the split, of any name, into out. */
static bool sharded_split(const char *path, char *out, size_t size)
{
    if (strncmp(path, "data/", 5) != 0)
        return false;
    const char *p = path + 5, *dash = p;
    while ((dash = strchr(dash, '-'))
           && !(strspn(dash + 1, "0123456789") == 5 && strncmp(dash + 6, "-of-", 4) == 0 && strspn(dash + 10, "0123456789") == 5))
        dash++;
    return dash && dash > p && snprintf(out, size, "%.*s", (int)(dash - p), p) < (int)size;
}

static const char *folder_split(const char *path)
{
    for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        const char *split = split_in(path, (size_t)(slash - path));
        if (split)
            return split;
    }
    return NULL;
}

static const char *file_split(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return split_in(name, strlen(name));
}

/* The splits found in a repository or a part of it: their names, and each file's. */
struct splits {
    char name[SPLITS_MAX][128];
    int n;
    int *of;    // (names->n) index of a file's split; -1: none
};

static void split_put(struct splits *s, int file, const char *name)
{
    int i = 0;
    while (i < s->n && strcmp(s->name[i], name) != 0)
        i++;
    if (i == SPLITS_MAX)
        return;
    if (i == s->n)
        snprintf(s->name[s->n++], sizeof s->name[0], "%s", name);
    s->of[file] = i;
}

/* By the names of files below `below` ("" or a folder with '/' behind it); the first rule that finds anything holds. */
static void splits_infer(struct splits *s, const struct hub_names *names, const char *below)
{
    char sharded[128];
    size_t skip = strlen(below);
    for (int rule = 0; rule < 4 && s->n == 0; rule++) {
        for (int i = 0; i < names->n; i++) {
            const char *path = names->name[i] + skip;
            if (strncmp(names->name[i], below, skip) != 0 || is_hidden(path) || !is_data_name(path))
                continue;
            const char *split = rule == 0   ? sharded_split(path, sharded, sizeof sharded) ? sharded : NULL
                                : rule == 1 ? folder_split(path)
                                : rule == 2 ? file_split(path)
                                            : "train";
            if (split)
                split_put(s, i, split);
        }
    }
}

/* By what the README says of a configuration. */
static void splits_read(struct splits *s, const struct hub_names *names, const struct readme_config *c)
{
    char pattern[600];
    for (int k = 0; k < c->n_file; k++) {
        bool inside = snprintf(pattern, sizeof pattern, "%s%s%s", c->data_dir, c->data_dir[0] ? "/" : "", c->file[k].pattern)
                      < (int)sizeof pattern;
        for (int i = 0; inside && i < names->n; i++)
            if (path_matches(pattern, names->name[i]))
                split_put(s, i, c->file[k].split);
    }
}

/* ---- choosing ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hub_data_all(struct hub_names *names)
{
    if (names->n > 1)
        qsort(names->name, (size_t)names->n, sizeof *names->name, by_name);
    for (int i = 0; i < names->n; i++)
        names->wanted[i] = is_data_name(names->name[i]) && !is_hidden(names->name[i]);
}

bool hub_names_wanted(const struct hub_names *names, const char *name)
{
    char *const *at = names->n > 0 ? bsearch(&name, names->name, (size_t)names->n, sizeof *names->name, by_name) : NULL;
    return at && names->wanted[at - names->name];
}

/* The configuration called name; "" for the default one. NULL with *several set: it has to be named. */
static const struct readme_config *config_find(const struct readme *r, const char *name, bool *several)
{
    const struct readme_config *found = r->n_config == 1 ? &r->config[0] : NULL;
    for (int i = 0; i < r->n_config; i++) {
        if (name[0] && strcmp(r->config[i].name, name) == 0)
            return &r->config[i];
        if (r->config[i].is_default || (!found && strcmp(r->config[i].name, "default") == 0))
            found = &r->config[i];
    }
    *several = !found;
    return name[0] ? NULL : found;
}

static const char *configs_list(const struct readme *r, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < r->n_config && n + 1 < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", r->config[i].name);
    return out;
}

static const char *splits_list(const struct splits *s, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < s->n && n + 1 < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", s->name[i]);
    return out;
}

static int split_index(const struct splits *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0)
            return i;
    return -1;
}

/* All files called ...-00000-of-00003... must be there. */
static bool shards_check(const struct hub_names *names, const char *shown, struct error *err)
{
    for (int i = 0; i < names->n; i++) {
        const char *of = strstr(names->name[i], "-of-");
        if (!names->wanted[i] || !of || of - names->name[i] < 6 || strspn(of + 4, "0123456789") != 5 || strspn(of - 5, "0123456789") != 5)
            continue;
        size_t stem = (size_t)(of - names->name[i]) - 5;
        long n = strtol(of + 4, NULL, 10), have = 0;
        for (int k = 0; k < names->n; k++)
            have += names->wanted[k] && strncmp(names->name[k], names->name[i], stem) == 0
                    && strncmp(names->name[k] + stem + 5, of, 9) == 0;
        if (have != n)
            return error_set(err, ERR_DATA, "of the %ld files '%.*s…' of '%s' %ld are there; get the others (rollcall pull --dataset)", n,
                             (int)stem, names->name[i], shown, have);
    }
    return true;
}

/* The splits of the configuration that is meant. *split_name: a word that turned out to name a split. */
static bool splits_find(struct splits *s, const struct hub_names *names, const struct readme *r, const char *config, const char **split,
                        const char *shown, struct error *err)
{
    char list[600], below[140] = "";
    bool several = false;
    const struct readme_config *c = r->n_config > 0 ? config_find(r, config, &several) : NULL;
    if (!c && config[0]) {    // a folder, else a split of the default configuration
        bool is_folder = false;
        snprintf(below, sizeof below, "%s/", config);
        for (int i = 0; i < names->n && r->n_config == 0; i++)
            is_folder |= strncmp(names->name[i], below, strlen(below)) == 0;
        if (!is_folder) {
            below[0] = 0;
            if ((*split)[0])
                return error_set(err, ERR_NOT_FOUND, "'%s': there is no configuration '%s'%s%s", shown, config,
                                 r->n_config ? "; there are " : "", configs_list(r, list, sizeof list));
            *split = config;
            c = r->n_config > 0 ? config_find(r, "", &several) : NULL;
        }
    }
    if (r->n_config > 0 && !c)
        return error_set(err, ERR_NOT_FOUND, "'%s' has several configurations (%s); name one: ORG/NAME:CONFIG", shown,
                         configs_list(r, list, sizeof list));
    if (c && c->n_file > 0) {
        splits_read(s, names, c);
        return true;
    }
    if (c && c->data_dir[0])
        snprintf(below, sizeof below, "%.130s/", c->data_dir);
    splits_infer(s, names, below);
    return true;
}

bool hub_data_select(struct hub_names *names, const char *readme, size_t readme_len, const char *config, const char *split,
                     const char *shown, struct error *err)
{
    struct readme r = { 0 };
    struct splits *s = calloc(1, sizeof *s);
    char list[600];
    bool ok = false;
    if (names->n > 1)
        qsort(names->name, (size_t)names->n, sizeof *names->name, by_name);
    TRY((s && (s->of = malloc((size_t)MAX(names->n, 1) * sizeof *s->of)))
        || error_set(err, ERR_NO_MEMORY, "no memory for %d files", names->n));
    for (int i = 0; i < names->n; i++) {
        s->of[i] = -1;
        names->wanted[i] = false;
    }
    TRY(readme_read(&r, readme, readme_len, shown, err));
    TRY(splits_find(s, names, &r, config, &split, shown, err));
    int n_other = 0, chosen = split[0] ? split_index(s, split) : s->n == 1 ? 0 : split_index(s, "train");
    if (s->n == 0) {
        error_set(err, ERR_NOT_FOUND, "'%s' holds no file of data (.jsonl, .json, .csv, .tsv or .parquet; .gz or .zst after it)", shown);
        goto out;
    }
    for (int i = 0; i < names->n; i++)
        n_other += s->of[i] < 0 && is_data_name(names->name[i]) && !is_hidden(names->name[i]);
    if (chosen < 0 || (!split[0] && r.n_config == 0 && n_other > 0 && strcmp(s->name[chosen], "train") != 0)) {
        splits_list(s, list, sizeof list);
        if (split[0])
            error_set(err, ERR_NOT_FOUND, "'%s' has no split '%s'; there are %s", shown, split, list);
        else
            error_set(err, ERR_NOT_FOUND,
                      "'%s' has the splits %s%s; name one as ORG/NAME:CONFIG:SPLIT, or files with a pattern such as 'FOLDER/train*'", shown,
                      list, n_other > 0 ? ", and files of none" : "");
        goto out;
    }
    int n_chosen = 0;
    for (int i = 0; i < names->n; i++)
        n_chosen += names->wanted[i] = s->of[i] == chosen;
    if (n_chosen == 0) {
        error_set(err, ERR_NOT_FOUND, "'%s': the files of split '%s' are those of another one, too", shown, s->name[chosen]);
        goto out;
    }
    ok = shards_check(names, shown, err);
out:
    readme_release(&r);
    if (s)
        free(s->of);
    free(s);
    return ok;
}
