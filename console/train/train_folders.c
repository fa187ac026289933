/* The folders in which a run keeps checkpoints, evaluations and rollouts, each owned by it (run_owner.h). */
#include "console/train/train_parts.h"
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/run/run_owner.h"
#include "workers/engine/sampler/eval.h"

enum {
    FOLDERS_MAX = 3,
};
struct folder {
    const char *setting;
    char path[PATH_MAX];
};

/* This run's folders; those inside the directory of a run that has none yet are left out. */
static bool folders_list(const struct train *t, struct folder folder[FOLDERS_MAX], int *n, struct error *err)
{
    const struct run_config *c = &t->config;
    const struct {
        const char *setting, *given, *own;
    } rows[FOLDERS_MAX] = { { "save_dir", c->save_dir, "checkpoints" },
                            { "rollout_save_dir", c->rollout_save_dir, "rollouts" },
                            { "eval_save_dir", c->eval_save_dir, "eval" } };
    *n = 0;
    for (int i = 0; i < FOLDERS_MAX; i++) {
        struct folder *f = &folder[*n];
        f->setting = rows[i].setting;
        bool fits = true;
        if (!rows[i].given[0] && !t->run_dir[0])
            continue;
        if (!rows[i].given[0]) {
            fits = path_join(f->path, sizeof f->path, t->run_dir, rows[i].own);
        } else if (strcmp(rows[i].own, "eval") == 0) {    // the project's folder in it
            if (!eval_file_path(f->path, sizeof f->path, rows[i].given, c->project, "any", 0, err))
                return false;
            *strrchr(f->path, '/') = 0;
        } else {
            fits = strlen(rows[i].given) < sizeof f->path;
            memcpy(f->path, rows[i].given, fits ? strlen(rows[i].given) + 1 : 0);
        }
        if (!fits)
            return error_set(err, ERR_USAGE, "the path of '%s' is too long", f->setting);
        (*n)++;
    }
    return true;
}

bool folders_check(const struct train *t, struct error *err)
{
    struct folder folder[FOLDERS_MAX];
    char id[RUN_ID_BYTES] = "";
    int n;
    bool ok = folders_list(t, folder, &n, err) && (!t->run_dir[0] || run_id_read(t->run_dir, id, err));
    bool older = t->run_dir[0] && !id[0];    // begun by an older rollcall: folders without a mark count as its own
    for (int i = 0; ok && i < n; i++)
        ok = folder_check(folder[i].path, folder[i].setting, t->run_dir, older ? "-" : id, err);
    return ok;
}

bool folders_take(const struct train *t, struct error *err)
{
    struct folder folder[FOLDERS_MAX];
    char id[RUN_ID_BYTES];
    int n;
    bool ok = folders_list(t, folder, &n, err) && run_id_make(t->run_dir, id, err);
    for (int i = 0; ok && i < n; i++)
        ok = folder_take(folder[i].path, folder[i].setting, t->run_dir, id, err);
    return ok;
}
