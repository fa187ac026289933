#include "workers/engine/data/identity.h"
#include <inttypes.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/digest.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

#define WHOLE_BYTES ((size_t)16 << 20)    // files up to here are read whole
#define STRIDE_BYTES ((size_t)1 << 20)
#define SAMPLE_BYTES ((size_t)4 << 10)
#define SMALL_FILE_MAX ((size_t)256 << 20)

static bool file_add(struct digest *d, const char *dir, const char *name, struct error *err)
{
    char path[PATH_MAX];
    struct file_map map;
    if (!path_join(path, sizeof path, dir, name))
        return error_set(err, ERR_USAGE, "the path '%s/%s' is too long", dir, name);
    if (!path_exists(path))
        return true;
    if (!file_map_open(&map, path, err))
        return false;
    digest_add(d, name, strlen(name) + 1);
    digest_add(d, &map.size_bytes, sizeof map.size_bytes);
    if (map.size_bytes <= WHOLE_BYTES)
        digest_add(d, map.data, map.size_bytes);
    else
        for (size_t at = 0; at < map.size_bytes; at += STRIDE_BYTES)
            digest_add(d, map.data + at, MIN(SAMPLE_BYTES, map.size_bytes - at));
    file_map_close(&map);
    return true;
}

static bool part_set(json_t *out, const char *name, struct digest *d, struct error *err)
{
    char hex[65];
    digest_hex(d, hex);
    return json_object_set_new(out, name, json_string(hex)) == 0 || error_set(err, ERR_NO_MEMORY, "no memory for the hash of '%s'", name);
}

static int is_weights(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

static bool weights_add(struct digest *d, const char *dir, struct error *err)
{
    struct dirent **e = NULL;
    int n = scandir(dir, &e, is_weights, alphasort);
    bool ok = n >= 0 || error_errno(err, "cannot list '%s'", dir);
    for (int i = 0; i < n; i++) {
        ok = ok && file_add(d, dir, e[i]->d_name, err);
        free(e[i]);
    }
    free(e);
    return ok;
}

/* tokenizer_config.json without its chat template to tokenizer, and the template to chat. */
static bool tokenizer_config_add(struct digest *tokenizer, struct digest *chat, const char *dir, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    json_error_t je;
    if (!path_join(path, sizeof path, dir, "tokenizer_config.json") || !path_exists(path))
        return true;
    if (!file_read(&text, path, SMALL_FILE_MAX, err)) {
        buf_release(&text);
        return false;
    }
    json_t *config = json_text_read(text.data, text.len, 0, &je);
    char *template = config ? json_text_dump(json_object_get(config, "chat_template"), JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    json_object_del(config, "chat_template");
    char *rest = config ? json_text_dump(config, JSON_SORT_KEYS) : NULL;
    digest_add(chat, template ? template : "", template ? strlen(template) : 0);
    digest_add(tokenizer, rest ? rest : buf_text(&text),
               rest ? strlen(rest) : text.len);    // a file that is not JSON is reported elsewhere
    free(template);
    free(rest);
    json_decref(config);
    buf_release(&text);
    return true;
}

bool identity_model(json_t *out, const char *dir, const char *tokenizer_dir, struct error *err)
{
    static const char *const tokenizer_files[] = { "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                                                   "merges.txt",     "generation_config.json" };
    struct digest model, tokenizer, chat;
    digest_init(&model, true);
    digest_init(&tokenizer, true);
    digest_init(&chat, true);
    bool ok = file_add(&model, dir, "config.json", err) && weights_add(&model, dir, err);
    for (size_t i = 0; i < ARRAY_SIZE(tokenizer_files) && ok; i++)
        ok = file_add(&tokenizer, tokenizer_dir, tokenizer_files[i], err);
    return ok && file_add(&chat, tokenizer_dir, "chat_template.jinja", err)
           && file_add(&chat, tokenizer_dir, "additional_chat_templates/tool_use.jinja", err)
           && tokenizer_config_add(&tokenizer, &chat, tokenizer_dir, err) && part_set(out, "model", &model, err)
           && part_set(out, "tokenizer", &tokenizer, err) && part_set(out, "chat_template", &chat, err);
}

/* The weights of dir and the file that says what they are, as one part; dir "": nothing is added. */
static bool weights_part_set(json_t *out, const char *name, const char *dir, const char *config, struct error *err)
{
    struct digest part;
    digest_init(&part, true);
    return !dir[0] || (file_add(&part, dir, config, err) && weights_add(&part, dir, err) && part_set(out, name, &part, err));
}

bool identity_adapter(json_t *out, const char *dir, struct error *err)
{
    return weights_part_set(out, "adapter", dir, "adapter_config.json", err);
}

bool identity_teacher(json_t *out, const char *dir, struct error *err)
{
    return weights_part_set(out, "teacher", dir, "config.json", err);
}

bool identity_add(json_t *out, const char *name, uint64_t hash, struct error *err)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    return json_object_set_new(out, name, json_string(hex)) == 0 || error_set(err, ERR_NO_MEMORY, "no memory for the hash of '%s'", name);
}

int identity_changed(const json_t *was, const json_t *is, char *names, size_t size)
{
    const char *name;
    json_t *hash;
    int n = 0;
    names[0] = 0;
    json_object_foreach((json_t *)was, name, hash)
    {
        json_t *now = json_object_get(is, name);
        if (now && !json_equal(now, hash)) {
            size_t len = strlen(names);
            snprintf(names + len, size - len, "%s%s", n++ ? ", " : "", name);
        }
    }
    return n;
}

bool identity_read(const char *run_dir, json_t **out, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    *out = NULL;
    if (!path_join(path, sizeof path, run_dir, "identity.json") || !path_exists(path))
        return true;
    bool ok = file_read(&text, path, SMALL_FILE_MAX, err) && (*out = json_text_parse(buf_text(&text), text.len, 0, path, err));
    buf_release(&text);
    return ok;
}

bool identity_write(const char *run_dir, const json_t *parts, struct error *err)
{
    char path[PATH_MAX];
    char *text = json_text_dump(parts, JSON_INDENT(1) | JSON_SORT_KEYS);
    bool ok = (path_join(path, sizeof path, run_dir, "identity.json") || error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir))
              && (text || error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path)) && file_write(path, text, strlen(text), err);
    free(text);
    return ok;
}
