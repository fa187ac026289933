#include "protocol/run/resume_flags.h"
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

#define FLAGS_MAX_BYTES ((size_t)4 << 20)

static bool path_make(const char *run_dir, char path[PATH_MAX], struct error *err)
{
    return path_join(path, PATH_MAX, run_dir, "resume") || error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
}

bool resume_flags_add(struct buf *text, const char *name, const char *before, const char *value, struct error *err)
{
    json_t *o = json_pack("{s:s,s:s,s:s}", "name", name, "before", before, "value", value);
    char *line = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    bool ok = line && buf_str(text, line) && buf_char(text, '\n');
    free(line);
    json_decref(o);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for the setting '%s'", name);
}

bool resume_flags_write(const char *run_dir, const struct buf *text, struct error *err)
{
    char path[PATH_MAX];
    struct buf all = BUF_INIT;
    bool ok = path_make(run_dir, path, err) && (!path_exists(path) || file_read(&all, path, FLAGS_MAX_BYTES, err));
    if (ok && !buf_add(&all, text->data, text->len))
        ok = error_set(err, ERR_NO_MEMORY, "no memory for the settings given");
    ok = ok && file_write(path, all.data, all.len, err);
    buf_release(&all);
    return ok;
}

bool resume_flags_read(const char *run_dir, resume_flags_fn *fn, void *arg, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    if (!path_make(run_dir, path, err))
        return false;
    if (!path_exists(path))
        return true;
    bool ok = file_read_text(&text, path, FLAGS_MAX_BYTES, err);
    for (const char *at = buf_text(&text); ok && *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        json_error_t je;
        json_t *o = json_text_read(at, strcspn(at, "\n"), 0, &je);
        const char *name = json_string_value(json_object_get(o, "name")), *before = json_string_value(json_object_get(o, "before"));
        const char *value = json_string_value(json_object_get(o, "value"));
        ok = name && before && value ? fn(arg, name, before, value, err)
                                     : error_set(err, ERR_DATA, "'%s' holds no settings: remove it, and give them again", path);
        json_decref(o);
    }
    buf_release(&text);
    return ok;
}

void resume_flags_remove(const char *run_dir)
{
    char path[PATH_MAX];
    if (path_join(path, sizeof path, run_dir, "resume"))
        unlink(path);
}
