#include "workers/export/wandb.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

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
        snprintf(s->who.run_id, sizeof s->who.run_id, "%.*s", (int)strcspn(buf_text(&text), "\r\n"), buf_text(&text));
        buf_release(&text);
        return ok && (s->who.run_id[0] || error_set(err, ERR_DATA, "'%s' holds no run id", path));
    }
    if (!s->who.run_id[0]) {
        unsigned char noise[8];
        if (getrandom(noise, sizeof noise, 0) != sizeof noise)
            return error_errno(err, "cannot make a run id");
        for (int i = 0; i < 8; i++)
            s->who.run_id[i] = letters[noise[i] % 36];
    }
    return file_write(path, s->who.run_id, strlen(s->who.run_id), err);
}

static double env_seconds(const char *name, double otherwise)
{
    double v;
    const char *text = getenv(name);
    return text && parse_f64(text, &v) && v > 0 && v < 1e6 ? v : otherwise;
}

bool wandb_setup_make(struct wandb_setup *s, const char *run_dir, bool need_key, struct error *err)
{
    char path[PATH_MAX];
    *s = (struct wandb_setup){ .run_dir = run_dir };
    run_config_init(&s->began);
    if (!path_join(path, sizeof path, run_dir, "run.yaml"))
        return error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    if (!run_config_read(&s->began, path, err))
        return error_wrap(err, "while reading the run's settings");
    s->config = s->began;
    if (!wandb_who_make(&s->who, &s->config, err))
        return false;
    s->id_given = s->who.run_id[0] || s->who.resume[0];
    snprintf(s->ca, sizeof s->ca, "%s", s->config.wandb_ca);
    s->transmit_s = env_seconds("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", 15);
    s->retry_min_s = env_seconds("WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS", 2);
    s->finish_s = env_seconds("WANDB_FINISH_TIMEOUT", 60);
    s->start_s = clock_wall_s();
    return run_id_make(s, err) && (!need_key || wandb_key_find(&s->who, err));
}

void wandb_address_print(const struct wandb_setup *s)
{
    static const char api[] = "://api.wandb.";    // on wandb.ai the page has its own host name next to the API's; elsewhere they share one
    const char *at = strstr(s->who.base_url, api);
    if (at)
        printf("%.*s://wandb.%s", (int)(at - s->who.base_url), s->who.base_url, at + sizeof api - 1);
    else
        printf("%s", s->who.base_url);
    printf("/%s/%s/runs/%s\n", s->who.entity, s->who.project, s->who.run_id);
}

void wandb_setup_release(struct wandb_setup *s)
{
    explicit_bzero(s->who.key, sizeof s->who.key);
}
