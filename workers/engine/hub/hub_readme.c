#include "workers/engine/hub/hub_readme.h"
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/utf8.h"

#define CONFIGS_MAX 1000
#define FILES_MAX 1000

/* A scalar as new text, "" for what is none. NULL: no memory. */
static char *scalar_new(struct fy_node *node)
{
    size_t len = 0;
    const char *text = node && fy_node_is_scalar(node) ? fy_node_get_scalar(node, &len) : NULL;
    return strndup(text ? text : "", text ? len : 0);
}

static bool file_add(struct readme_config *c, const char *split, struct fy_node *pattern)
{
    struct readme_file *more = c->n_file < FILES_MAX ? realloc(c->file, (size_t)(c->n_file + 1) * sizeof *more) : NULL;
    if (!more)
        return false;
    c->file = more;
    struct readme_file *f = &c->file[c->n_file++];
    f->split = strdup(split);
    f->pattern = scalar_new(pattern);
    return f->split && f->pattern;
}

/* A pattern, or a list of them. */
static bool patterns_read(struct readme_config *c, const char *split, struct fy_node *node)
{
    void *it = NULL;
    bool ok = true;
    if (!node || !fy_node_is_sequence(node))
        return !node || file_add(c, split, node);
    for (struct fy_node *one; ok && (one = fy_node_sequence_iterate(node, &it));)
        ok = file_add(c, split, one);
    return ok;
}

/* data_files: a pattern, a list of patterns, a list of {split, path}, or {split: patterns}. */
static bool files_read(struct readme_config *c, struct fy_node *node)
{
    void *it = NULL;
    bool ok = true;
    if (node && fy_node_is_mapping(node)) {
        for (struct fy_node_pair *p; ok && (p = fy_node_mapping_iterate(node, &it));) {
            char *split = scalar_new(fy_node_pair_key(p));
            ok = split && patterns_read(c, split, fy_node_pair_value(p));
            free(split);
        }
        return ok;
    }
    if (!node || !fy_node_is_sequence(node))
        return patterns_read(c, "train", node);
    for (struct fy_node *one; ok && (one = fy_node_sequence_iterate(node, &it));) {
        if (!fy_node_is_mapping(one)) {
            ok = file_add(c, "train", one);
            continue;
        }
        char *split = scalar_new(fy_node_mapping_lookup_by_string(one, "split", (size_t)-1));
        ok = split && patterns_read(c, split, fy_node_mapping_lookup_by_string(one, "path", (size_t)-1));
        free(split);
    }
    return ok;
}

static bool config_read(struct readme *r, struct fy_node *node)
{
    struct readme_config *more = r->n_config < CONFIGS_MAX ? realloc(r->config, (size_t)(r->n_config + 1) * sizeof *more) : NULL;
    if (!more)
        return false;
    r->config = more;
    struct readme_config *c = &r->config[r->n_config++];
    char *is_default = scalar_new(fy_node_mapping_lookup_by_string(node, "default", (size_t)-1));
    *c = (struct readme_config){ .name = scalar_new(fy_node_mapping_lookup_by_string(node, "config_name", (size_t)-1)),
                                 .data_dir = scalar_new(fy_node_mapping_lookup_by_string(node, "data_dir", (size_t)-1)),
                                 .is_default = is_default && strcmp(is_default, "true") == 0 };
    bool ok = is_default && c->name && c->data_dir;
    free(is_default);
    while (ok && c->data_dir[0] && c->data_dir[strlen(c->data_dir) - 1] == '/')
        c->data_dir[strlen(c->data_dir) - 1] = 0;
    return ok && files_read(c, fy_node_mapping_lookup_by_string(node, "data_files", (size_t)-1));
}

bool readme_read(struct readme *r, const char *text, size_t len, const char *shown, struct error *err)
{
    const char *from = len > 4 && strncmp(text, "---", 3) == 0 ? memchr(text, '\n', len) : NULL;
    const char *to = from ? memmem(from, len - (size_t)(from - text), "\n---", 4) : NULL;
    struct fy_parse_cfg cfg = { .flags = (FYPCF_DEFAULT_DOC & ~FYPCF_RESOLVE_DOCUMENT) | FYPCF_QUIET };
    struct fy_diag_cfg diag_cfg;
    char path[300];
    void *it = NULL;
    if (!to || !memmem(from, (size_t)(to - from), "\nconfigs:", 9))
        return true;
    snprintf(path, sizeof path, "%.200s: README.md", shown);
    if (!utf8_check(from, (size_t)(to - from), path, err))    // libfyaml loses text after what is not UTF-8
        return false;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    struct fy_diag *diag = cfg.diag = fy_diag_create(&diag_cfg);
    if (!diag)
        return error_set(err, ERR_NO_MEMORY, "no memory to read %s", path);
    fy_diag_set_collect_errors(diag, true);    // instead of printing them
    struct fy_document *doc = fy_document_build_from_string(&cfg, from, (size_t)(to - from));
    if (!doc) {
        fy_diag_destroy(diag);
        return error_set(err, ERR_DATA, "the front matter of %s is not YAML", path);
    }
    struct fy_node *root = fy_document_root(doc);
    struct fy_node *configs = root && fy_node_is_mapping(root) ? fy_node_mapping_lookup_by_string(root, "configs", (size_t)-1) : NULL;
    bool ok = true, is_list = configs && fy_node_is_sequence(configs);
    for (struct fy_node *one; is_list && ok && (one = fy_node_sequence_iterate(configs, &it));)
        ok = fy_node_is_mapping(one) && config_read(r, one);
    fy_document_destroy(doc);
    fy_diag_destroy(diag);
    return ok || error_set(err, ERR_DATA, "the 'configs' of %s are not of the form that the hub describes, or too many", path);
}

void readme_release(struct readme *r)
{
    for (int i = 0; i < r->n_config; i++) {
        struct readme_config *c = &r->config[i];
        for (int k = 0; k < c->n_file; k++) {
            free(c->file[k].split);
            free(c->file[k].pattern);
        }
        free(c->file);
        free(c->name);
        free(c->data_dir);
    }
    free(r->config);
    *r = (struct readme){ 0 };
}
