#include "protocol/settings/wandb_who.h"
#include <ctype.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/wandb_files.h"

/* Where each value comes from. wandb's own limits: 128 characters for a project's name; the others are ours. */
static const struct who_row {
    const char *setting;      // of the run, or NULL
    const char *variable;     // of the environment, or NULL
    const char *key;          // in wandb's settings files, or NULL
    const char *otherwise;    // if none of them has a value
    size_t at, size;          // in struct wandb_who
} rows[] = {
#define WHO(field) offsetof(struct wandb_who, field), sizeof(((struct wandb_who *)NULL)->field)
    { "wandb_base_url", "WANDB_BASE_URL", "base_url", "https://api.wandb.ai", WHO(base_url) },
    { "wandb_entity", "WANDB_ENTITY", "entity", "", WHO(entity) },
    { "project", "WANDB_PROJECT", "project", "GRPO", WHO(project) },
    { "name", "WANDB_NAME", "run_name", "", WHO(display_name) },
    { "wandb_group", "WANDB_RUN_GROUP", "run_group", "", WHO(group) },
    { "wandb_tags", "WANDB_TAGS", "run_tags", "", WHO(tags) },
    { "wandb_notes", "WANDB_NOTES", "run_notes", "", WHO(notes) },
    { NULL, "WANDB_JOB_TYPE", "run_job_type", "train", WHO(job_type) },
    { NULL, "WANDB_RUN_ID", NULL, "", WHO(run_id) },
    { NULL, "WANDB_RESUME", NULL, "", WHO(resume) },
#undef WHO
};

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

/* The run's own setting if it was given, else the environment's, else the one in wandb's settings files, else the default. from: what
 * gave it, for messages. */
static bool row_take(const struct who_row *row, struct wandb_who *w, const struct run_config *c, const struct wandb_files *files,
                     const char **from, struct error *err)
{
    char kept[WANDB_VALUE_MAX];
    struct buf text = BUF_INIT;
    struct error none;
    const struct knob *k = row->setting ? knob_find(row->setting, &none) : NULL;
    const char *value = k ? knob_text(k, c, &text) : "";
    *from = row->setting;
    if (k && strcmp(value, k->def) == 0)
        value = "";
    if (!value[0] && env(row->variable))
        value = env(*from = row->variable);
    if (!value[0])
        value = row->key && wandb_files_value(files, *from = row->key, kept, sizeof kept) ? kept : row->otherwise;
    bool fits = strlen(value) < row->size;
    if (fits)
        strcpy((char *)w + row->at, value);
    else
        error_set(err, ERR_USAGE, "wandb: '%s' is longer than %zu bytes", *from, row->size - 1);
    buf_release(&text);
    return fits;
}

/* Characters of a text in UTF-8. */
static size_t n_char(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* The rules of wandb's client (wandb_settings.py of 0.28: validate_project, validate_run_id, resume). from: what gave the project. */
static bool names_check(const struct wandb_who *w, const char *project_from, struct error *err)
{
    static const char *const resumes[] = { "", "allow", "must", "never", "auto" };
    if (strpbrk(w->project, "/\\#?%:"))
        return error_set(err, ERR_USAGE, "the project '%s' (%s) holds '%c'; wandb takes no name with any of / \\ # ? %% :", w->project,
                         project_from, *strpbrk(w->project, "/\\#?%:"));
    if (n_char(w->project) > WANDB_PROJECT_MAX)
        return error_set(err, ERR_USAGE, "the project '%.40s...' (%s) is longer than the %d characters that wandb takes", w->project,
                         project_from, WANDB_PROJECT_MAX);
    if (strpbrk(w->run_id, ":;,#?/'") || isspace((unsigned char)w->run_id[0])
        || (w->run_id[0] && isspace((unsigned char)w->run_id[strlen(w->run_id) - 1])))
        return error_set(err, ERR_USAGE, "WANDB_RUN_ID is '%s'; it must not hold any of : ; , # ? / ' nor a blank at its ends", w->run_id);
    for (size_t i = 0; i < ARRAY_SIZE(resumes); i++)
        if (strcmp(w->resume, resumes[i]) == 0)
            return true;
    return error_set(err, ERR_USAGE, "WANDB_RESUME is '%s'; it must be allow, must, never or auto", w->resume);
}

bool wandb_who_make(struct wandb_who *w, const struct run_config *c, struct error *err)
{
    struct wandb_files files;
    const char *from, *project_from = "project";
    *w = (struct wandb_who){ 0 };
    if (!wandb_files_read(&files, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < ARRAY_SIZE(rows); i++) {
        ok = row_take(&rows[i], w, c, &files, &from, err);
        if ((char *)w + rows[i].at == w->project)
            project_from = from;
    }
    wandb_files_release(&files);
    for (size_t n = strlen(w->base_url); n > 0 && w->base_url[n - 1] == '/'; n--)
        w->base_url[n - 1] = 0;
    if (ok && strncmp(w->base_url, "http://", 7) != 0 && strncmp(w->base_url, "https://", 8) != 0)
        ok = error_set(err, ERR_USAGE, "'wandb_base_url' is '%s'; it must begin with http:// or https://", w->base_url);
    return ok && names_check(w, project_from, err);
}

/* Host with port of a URL: the name of a netrc entry. */
static void url_netloc(char *out, size_t size, const char *url)
{
    const char *at = strstr(url, "://");
    at = at ? at + 3 : url;
    snprintf(out, size, "%.*s", (int)strcspn(at, "/"), at);
}

/* The next word of a netrc file, without quotes. False at the end. */
static bool netrc_word(const char **p, char *word, size_t size)
{
    size_t n = 0;
    *p += strspn(*p, " \t\r\n");
    if (!**p)
        return false;
    char quote = **p == '"' || **p == '\'' ? *(*p)++ : 0;
    while (**p && (quote ? **p != quote : !isspace((unsigned char)**p))) {
        if (n + 1 < size)
            word[n++] = **p;
        ++*p;
    }
    if (quote && **p)
        ++*p;
    word[n] = 0;
    return true;
}

static bool netrc_key(char *key, size_t size, const char *text, const char *machine)
{
    char word[1024];
    bool ours = false;
    while (netrc_word(&text, word, sizeof word)) {
        if (strcmp(word, "machine") == 0)
            ours = netrc_word(&text, word, sizeof word) && strcmp(word, machine) == 0;
        else if (strcmp(word, "default") == 0)
            ours = false;
        else if (strcmp(word, "password") == 0 && netrc_word(&text, word, sizeof word) && ours) {
            snprintf(key, size, "%s", word);
            return true;
        }
    }
    return false;
}

/* $NETRC, else ~/.netrc, else ~/_netrc, as the real client looks. */
static bool netrc_read(struct wandb_who *w)
{
    char path[PATH_MAX], machine[512];
    const char *home = env("HOME") ? env("HOME") : "/";
    struct buf text = BUF_INIT;
    struct error ignored;
    snprintf(path, sizeof path, "%s", env("NETRC") ? env("NETRC") : "");
    if (!path[0])
        snprintf(path, sizeof path, "%s/.netrc", home);
    if (!env("NETRC") && !path_exists(path))
        snprintf(path, sizeof path, "%s/_netrc", home);
    url_netloc(machine, sizeof machine, w->base_url);
    bool ok = path_exists(path) && file_read(&text, path, 1 << 20, &ignored) && netrc_key(w->key, sizeof w->key, buf_text(&text), machine);
    if (text.data)
        explicit_bzero(text.data, text.len);
    buf_release(&text);
    return ok;
}

bool wandb_key_find(struct wandb_who *w, struct error *err)
{
    const char *key = env("WANDB_API_KEY");
    if (key) {
        key += strspn(key, " \t\r\n");
        size_t len = strcspn(key, " \t\r\n");    // a newline after a mounted secret is common
        if (len >= sizeof w->key)
            return error_set(err, ERR_USAGE, "WANDB_API_KEY is longer than %zu bytes; no key is", sizeof w->key - 1);
        snprintf(w->key, sizeof w->key, "%.*s", (int)len, key);
    }
    if (!w->key[0] && !netrc_read(w) && env("WANDB_IDENTITY_TOKEN_FILE"))
        return error_set(err, ERR_UNSUPPORTED,
                         "WANDB_IDENTITY_TOKEN_FILE is set, but identity tokens are not supported: set WANDB_API_KEY, "
                         "or put a key for this server into ~/.netrc");
    if (!w->key[0])
        return error_set(err, ERR_USAGE, "no wandb key: set WANDB_API_KEY or put one for this server into ~/.netrc");
    return true;
}

bool wandb_who_check(const struct run_config *c, bool need_key, struct error *err)
{
    struct wandb_who w;
    if (strcmp(c->wandb, "off") == 0)
        return true;
    bool ok = wandb_who_make(&w, c, err) && (!need_key || strcmp(c->wandb, "online") != 0 || wandb_key_find(&w, err));
    explicit_bzero(&w, sizeof w);
    return ok;
}
