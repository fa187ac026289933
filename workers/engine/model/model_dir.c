#include "workers/engine/model/model_dir.h"
#include <string.h>
#include "protocol/base/file.h"

#define FILE_BYTES_MAX ((size_t)1 << 28)
#define PATH_BYTES 4096
#define CHAT_TEMPLATES "additional_chat_templates"
static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    CHAT_TEMPLATES "/tool_use.jinja",
};

const char *model_dir_file(int i)
{
    if (i == 0)
        return "config.json";
    return i - 1 < (int)ARRAY_SIZE(tokenizer_files) ? tokenizer_files[i - 1] : NULL;
}

bool model_dir_check(const char *dir, bool force, struct error *err)
{
    static const char *const signs[] = { "config.json", "model.safetensors", "model.safetensors.index.json" };
    char path[PATH_BYTES];
    for (size_t i = 0; !force && i < ARRAY_SIZE(signs); i++)
        if (path_join(path, sizeof path, dir, signs[i]) && path_exists(path))
            return error_set(err, ERR_EXISTS, "'%s' already exists; --force overwrites it", path);
    return true;
}

bool model_dir_copy_tokenizer(const char *from, const char *to, struct error *err)
{
    bool ok = false;
    char a[PATH_BYTES], b[PATH_BYTES];
    struct buf text = { .max = FILE_BYTES_MAX };
    TRY((path_join(a, sizeof a, from, CHAT_TEMPLATES) && path_join(b, sizeof b, to, CHAT_TEMPLATES))
        || error_set(err, ERR_USAGE, "the path '%s' or '%s' is too long", from, to));
    TRY(!path_is_dir(a) || dir_make(b, 0755, err));
    for (size_t i = 0; i < ARRAY_SIZE(tokenizer_files); i++) {
        if (!path_join(a, sizeof a, from, tokenizer_files[i]) || !path_join(b, sizeof b, to, tokenizer_files[i])) {
            error_set(err, ERR_USAGE, "the path '%s' or '%s' is too long", from, to);
            goto out;
        }
        if (!path_exists(a))
            continue;
        buf_clear(&text);
        TRY(file_read(&text, a, FILE_BYTES_MAX, err));
        TRY(file_write(b, buf_text(&text), text.len, err));
    }
    ok = true;
out:
    buf_release(&text);
    return ok;
}

bool model_dtype_parse(enum dtype *out, const char *name, struct error *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {
        { "float32", DT_F32 },
        { "fp32", DT_F32 },
        { "bfloat16", DT_BF16 },
        { "bf16", DT_BF16 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return true;
        }
    return error_set(err, ERR_USAGE, "unknown type '%s'; known are float32 and bfloat16", name);
}
