/* The templates of a model directory, and conversations through them. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_parts.h"

struct template *template_load_file(const char *path, struct error *err)
{
    struct buf text = { .max = (size_t)4 << 20 };
    struct template *t = NULL;
    if (file_read_text(&text, path, TEMPLATE_BYTES_MAX, err))
        t = template_new(buf_text(&text), text.len, path, err);
    buf_release(&text);
    return t;
}

/* The texts of special tokens: members ending in _token of tokenizer_config.json, a string or an object with a content.
 */
static json_t *tokens_read(json_t *config)
{
    json_t *tokens = json_object(), *v;
    const char *key;
    json_object_foreach(config, key, v)
    {
        size_t len = strlen(key);
        const json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
        if (len > 6 && strcmp(key + len - 6, "_token") == 0 && json_is_string(text))
            json_object_set(tokens, key, (json_t *)(uintptr_t)text);
    }
    return tokens;
}

/* What tokenizer_config.json has as chat_template: a text, which is the one called "default", or named ones: a list of {name, template},
 * as transformers writes it, or an object. NULL: none of that name. */
static const json_t *source_find(const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, "chat_template"), *one;
    size_t i;
    if (json_is_string(v))
        return strcmp(name, "default") == 0 ? v : NULL;
    json_array_foreach((json_t *)(uintptr_t)v, i, one)
    {
        const char *its = json_string_value(json_object_get(one, "name"));
        if (its && strcmp(its, name) == 0)
            return json_object_get(one, "template");
    }
    return json_object_get(v, name);
}

/* The template called name: dir's file, else the one in config (NULL: do not look there), whose path is config_path. */
static bool named_load(struct template **out, const char *dir, const char *file, const json_t *config, const char *config_path,
                       const char *name, struct error *err)
{
    char path[PATH_MAX], title[PATH_MAX + 80];
    const json_t *source = source_find(config, name);
    if (!path_join(path, sizeof path, dir, file))
        return error_set(err, ERR_IO, "the path '%s' is too long", dir);
    snprintf(title, sizeof title, "%s: chat_template%s%s", config_path, strcmp(name, "default") == 0 ? "" : " ",
             strcmp(name, "default") == 0 ? "" : name);
    if (path_exists(path))
        *out = template_load_file(path, err);
    else if (json_is_string(source))
        *out = template_new(json_string_value(source), json_string_length(source), title, err);
    else
        return true;
    return *out != NULL;
}

/* tokenizer_config.json; *config is NULL where there is none. */
static bool config_read(json_t **config, const char *path, struct error *err)
{
    struct buf text = { .max = (size_t)64 << 20 };
    bool ok = !path_exists(path)
              || (file_read_text(&text, path, (size_t)64 << 20, err)
                  && (*config = json_text_parse(buf_text(&text), text.len, JSON_REJECT_DUPLICATES, path, err)));
    buf_release(&text);
    return ok;
}

struct template *template_load(const char *dir, struct error *err)
{
    char path[PATH_MAX];
    json_t *config = NULL;
    struct template *t = NULL;
    bool ok = false;
    TRY(path_join(path, sizeof path, dir, "tokenizer_config.json") || error_set(err, ERR_IO, "the path '%s' is too long", dir));
    TRY(config_read(&config, path, err));
    TRY(named_load(&t, dir, "chat_template.jinja", config, path, "default", err));
    const json_t *named = json_object_get(config, "chat_template");
    TRY(t
        || (json_array_size(named) + json_object_size(named) > 0
                ? error_set(err, ERR_DATA, "'%s' has chat templates with names, and none is called 'default'", path)
                : error_set(err, ERR_NOT_FOUND, "'%s' has no chat template, neither chat_template.jinja nor in tokenizer_config.json",
                            dir)));
    /* as in transformers, files are in place of all that the settings have */
    char own[PATH_MAX];
    bool from_file = path_join(own, sizeof own, dir, "chat_template.jinja") && path_exists(own);
    TRY(named_load(&t->tool_use, dir, TEMPLATE_TOOL_USE_FILE, from_file ? NULL : config, path, "tool_use", err));
    TRY(!config || (t->tokens = tokens_read(config)) || error_set(err, ERR_NO_MEMORY, "no memory for a template"));
    if (t->tool_use)
        t->tool_use->tokens = json_incref(t->tokens);
    ok = true;
out:
    json_decref(config);
    if (ok)
        return t;
    template_free(t);
    return NULL;
}

bool template_find(const char *dir, struct template **out, struct error *err)
{
    struct error why = { 0 };
    *out = template_load(dir, &why);
    if (*out || why.code == ERR_NOT_FOUND)
        return true;
    *err = why;
    return false;
}

bool template_chat(const struct template *t, const json_t *messages, const struct chat_options *options, struct buf *out, struct error *err)
{
    json_t *m = (json_t *)(uintptr_t)messages, *list = NULL, *vars = NULL;
    bool ok = false;
    list = json_is_object(m) ? json_pack("[O]", m) : json_copy(m);
    const char *role = json_string_value(json_object_get(json_array_get(list, 0), "role"));
    if (!json_is_array(list) || json_array_size(list) == 0) {
        error_set(err, ERR_DATA, "'messages' is neither a message nor a list of messages");
        goto out;
    }
    if (options->system && (!role || strcmp(role, "system") != 0)
        && json_array_insert_new(list, 0, json_pack("{s:s, s:s}", "role", "system", "content", options->system)) != 0) {
        error_set(err, ERR_NO_MEMORY, "no memory for a conversation, or a system prompt that is not UTF-8");
        goto out;
    }
    vars = options->more ? json_copy((json_t *)(uintptr_t)options->more) : json_object();
    json_t *tools = options->tools ? json_incref((json_t *)(uintptr_t)options->tools) : json_null();
    if (json_object_set(vars, "messages", list) != 0 || json_object_set_new(vars, "tools", tools) != 0
        || json_object_set_new(vars, "documents", json_null()) != 0
        || json_object_set_new(vars, "add_generation_prompt", json_boolean(options->add_generation_prompt)) != 0) {
        error_set(err, ERR_NO_MEMORY, "no memory for a conversation");
        goto out;
    }
    ok = template_render(t, vars, options->now_s > 0 ? options->now_s : 1721952000 /* 26 Jul 2024 */, out, err);
out:
    json_decref(list);
    json_decref(vars);
    return ok;
}
