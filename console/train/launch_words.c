/* The words after --slurm: NAME=VALUE, from a table. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "console/train/launch.h"
#include "protocol/base/cli.h"

// clang-format off
static const struct launch_word {
    const char *name;
    size_t at;
    int64_t min, max;    // of a number; both 0: a text
} launch_words[] = {
    { "nodes", offsetof(struct launch, nodes), 1, 1024 },
    { "gpus", offsetof(struct launch, gpus), 0, 60 },
    { "cpus", offsetof(struct launch, cpus), 0, 4096 },
    { "port", offsetof(struct launch, port), 1, 65435 },
    { "wait", offsetof(struct launch, wait_s), 1, 1000000 },
    { "lost", offsetof(struct launch, lost_s), 5, 1000000 },
    { "partition", offsetof(struct launch, partition), 0, 0 },
    { "time", offsetof(struct launch, time), 0, 0 },
    { "more", offsetof(struct launch, more), 0, 0 },
    { "dir", offsetof(struct launch, dir), 0, 0 },
};
// clang-format on
#define WORD_NAMES "nodes, gpus, cpus, partition, time, more, port, dir, wait and lost"

static bool word_take(struct launch *l, const char *text, struct error *err)
{
    size_t len = strcspn(text, "=");
    const char *value = text + len + 1;
    for (size_t i = 0; i < ARRAY_SIZE(launch_words); i++) {
        const struct launch_word *w = &launch_words[i];
        char *at = (char *)l + w->at;
        int64_t n;
        if (strlen(w->name) != len || memcmp(w->name, text, len) != 0)
            continue;
        if (w->max == 0) {
            const char *plain = strcmp(w->name, "more") == 0 || strcmp(w->name, "dir") == 0 ? "\n\r" : "\n\r \t\"'\\$`";
            if (!value[0] || value[strcspn(value, plain)])
                return error_set(err, ERR_USAGE, "--slurm %.100s: the value must be one line%s", text,
                                 plain[2] ? " without blanks and quotes" : "");
            memcpy(at, &value, sizeof value);
            return true;
        }
        if (!parse_i64(value, &n) || n < w->min || n > w->max)
            return error_set(err, ERR_USAGE, "--slurm %.100s: a number from %d to %d is needed", text, (int)w->min, (int)w->max);
        memcpy(at, &n, sizeof n);
        return true;
    }
    return error_set(err, ERR_USAGE, "--slurm has no '%.*s'; it takes " WORD_NAMES, (int)len, text);
}

/* Words of `train` that are the starter's own business. */
static bool starters_own(const char *word)
{
    static const char *const own[] = { "--slurm", "--batch", "--dry-run", "--dry_run" };
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (strcmp(word, own[i]) == 0)
            return true;
    return false;
}

char **launch_words_take(struct launch *l, int *argc, char **argv, struct error *err)
{
    char **out = calloc((size_t)*argc + 1, sizeof *out);
    int n = 0;
    *l = (struct launch){
        .nodes = 1, .port = LAUNCH_PORT, .wait_s = 600, .lost_s = 60, .partition = "", .time = "", .more = "", .dir = ""
    };
    l->word = calloc((size_t)*argc + 1, sizeof *l->word);
    if (!out || !l->word) {
        error_set(err, ERR_NO_MEMORY, "no memory for the options");
        goto fail;
    }
    for (int i = 0; i < *argc; i++) {
        out[n++] = argv[i];
        if (i > 0 && !starters_own(argv[i]))
            l->word[l->n_word++] = argv[i];
        if (strcmp(argv[i], "--slurm") != 0)
            continue;
        l->slurm = true;
        while (i + 1 < *argc && argv[i + 1][0] != '-' && strchr(argv[i + 1], '=') && !strchr("=", argv[i + 1][0]))
            if (!word_take(l, argv[++i], err))
                goto fail;
    }
    *argc = n;
    return out;
fail:
    free(out);
    launch_release(l);
    return NULL;
}

void launch_release(struct launch *l)
{
    free(l->word);
    l->word = NULL;
    l->n_word = 0;
}
