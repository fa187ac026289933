#include "workers/export/wandb.h"
#include "workers/export/wandb_files.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/knobs.h"

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

/* The run's own setting if it was given, else the environment's, else the one in wandb's settings files, else the default. */
static void pick(char *out, size_t size, const char *of_run, const char *env_name, const struct wandb_files *files, const char *key,
                 const char *otherwise)
{
    if (of_run[0] || env(env_name))
        snprintf(out, size, "%s", of_run[0] ? of_run : env(env_name));
    else if (!wandb_files_value(files, key, out, size))
        snprintf(out, size, "%s", otherwise);
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
static bool netrc_read(struct wandb_setup *s)
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
    url_netloc(machine, sizeof machine, s->base_url);
    bool ok = path_exists(path) && file_read(&text, path, 1 << 20, &ignored) && netrc_key(s->key, sizeof s->key, buf_text(&text), machine);
    if (text.data)
        explicit_bzero(text.data, text.len);
    buf_release(&text);
    return ok;
}

static bool key_find(struct wandb_setup *s, struct error *err)
{
    const char *key = env("WANDB_API_KEY");
    if (key) {
        snprintf(s->key, sizeof s->key, "%s", key + strspn(key, " \t\r\n"));
        s->key[strcspn(s->key, " \t\r\n")] = 0;    // a newline after a mounted secret is common
    }
    if (!s->key[0] && !netrc_read(s) && env("WANDB_IDENTITY_TOKEN_FILE"))
        return error_set(err, ERR_UNSUPPORTED,
                         "WANDB_IDENTITY_TOKEN_FILE is set, but identity tokens are not supported: set WANDB_API_KEY, "
                         "or put a key for this server into ~/.netrc");
    if (!s->key[0])
        return error_set(err, ERR_USAGE, "no wandb key: set WANDB_API_KEY or put one for this server into ~/.netrc");
    return true;
}

static bool run_id_make(struct wandb_setup *s, struct error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    if (snprintf(path, sizeof path, "%s/export/wandb", s->run_dir) >= (int)sizeof path)
        return error_set(err, ERR_IO, "the path '%s' is too long", s->run_dir);
    if (!dir_make(path, 0755, err))
        return false;
    strncat(path, "/id", sizeof path - strlen(path) - 1);
    if (path_exists(path)) {
        bool ok = file_read(&text, path, 256, err);
        snprintf(s->run_id, sizeof s->run_id, "%.*s", (int)strcspn(buf_text(&text), "\r\n"), buf_text(&text));
        buf_release(&text);
        return ok && (s->run_id[0] || error_set(err, ERR_DATA, "'%s' holds no run id", path));
    }
    if (env("WANDB_RUN_ID")) {
        snprintf(s->run_id, sizeof s->run_id, "%s", env("WANDB_RUN_ID"));
        if (strpbrk(s->run_id, ":;,#?/'") || isspace((unsigned char)s->run_id[0]))
            return error_set(err, ERR_USAGE, "WANDB_RUN_ID is '%s'; it must not hold any of : ; , # ? / '", s->run_id);
    } else {
        unsigned char noise[8];
        if (getrandom(noise, sizeof noise, 0) != sizeof noise)
            return error_errno(err, "cannot make a run id");
        for (int i = 0; i < 8; i++)
            s->run_id[i] = letters[noise[i] % 36];
    }
    return file_write(path, s->run_id, strlen(s->run_id), err);
}

static double env_seconds(const char *name, double otherwise)
{
    double v;
    return env(name) && parse_f64(env(name), &v) && v > 0 && v < 1e6 ? v : otherwise;
}

bool wandb_setup_make(struct wandb_setup *s, const char *run_dir, bool need_key, struct error *err)
{
    char path[PATH_MAX];
    *s = (struct wandb_setup){ .run_dir = run_dir };
    run_config_init(&s->config);
    if (!path_join(path, sizeof path, run_dir, "run.yaml"))
        return error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    if (!run_config_read(&s->config, path, err))
        return error_wrap(err, "while reading the run's settings");
    const struct run_config *c = &s->config;
    struct wandb_files files;
    if (!wandb_files_read(&files, err))
        return false;
    pick(s->base_url, sizeof s->base_url, c->wandb_base_url, "WANDB_BASE_URL", &files, "base_url", "https://api.wandb.ai");
    pick(s->entity, sizeof s->entity, c->wandb_entity, "WANDB_ENTITY", &files, "entity", "");
    pick(s->project, sizeof s->project, strcmp(c->project, "GRPO") != 0 ? c->project : "", "WANDB_PROJECT", &files, "project", "GRPO");
    pick(s->display_name, sizeof s->display_name, c->name, "WANDB_NAME", &files, "run_name", "");
    pick(s->group, sizeof s->group, c->wandb_group, "WANDB_RUN_GROUP", &files, "run_group", "");
    pick(s->tags, sizeof s->tags, c->wandb_tags, "WANDB_TAGS", &files, "run_tags", "");
    pick(s->notes, sizeof s->notes, c->wandb_notes, "WANDB_NOTES", &files, "run_notes", "");
    pick(s->job_type, sizeof s->job_type, "", "WANDB_JOB_TYPE", &files, "run_job_type", "train");
    snprintf(s->resume, sizeof s->resume, "%s", env("WANDB_RESUME") ? env("WANDB_RESUME") : "");
    wandb_files_release(&files);
    for (size_t n = strlen(s->base_url); n > 0 && s->base_url[n - 1] == '/'; n--)
        s->base_url[n - 1] = 0;
    if (strncmp(s->base_url, "http://", 7) != 0 && strncmp(s->base_url, "https://", 8) != 0)
        return error_set(err, ERR_USAGE, "'wandb_base_url' is '%s'; it must begin with http:// or https://", s->base_url);
    for (char *p = s->project; *p; p++)
        if (strchr("/\\#?%:", *p))
            *p = '_';
    s->id_given = env("WANDB_RUN_ID") || s->resume[0];
    snprintf(s->ca, sizeof s->ca, "%s", c->wandb_ca);
    s->transmit_s = env_seconds("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", 15);
    s->retry_min_s = env_seconds("WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS", 2);
    s->finish_s = env_seconds("WANDB_FINISH_TIMEOUT", 60);
    s->start_s = clock_wall_s();
    return run_id_make(s, err) && (!need_key || key_find(s, err));
}

void wandb_address_print(const struct wandb_setup *s)
{
    static const char api[] = "://api.wandb.";    // on wandb.ai the page has its own host name next to the API's; elsewhere they share one
    const char *at = strstr(s->base_url, api);
    if (at)
        printf("%.*s://wandb.%s", (int)(at - s->base_url), s->base_url, at + sizeof api - 1);
    else
        printf("%s", s->base_url);
    printf("/%s/%s/runs/%s\n", s->entity, s->project, s->run_id);
}

void wandb_setup_release(struct wandb_setup *s)
{
    explicit_bzero(s->key, sizeof s->key);
}
