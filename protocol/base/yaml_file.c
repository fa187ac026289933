#include "protocol/base/yaml_file.h"
#include <string.h>
#include "protocol/base/file.h"

const char *yaml_text(struct fy_node *node, struct error *why)
{
    const char *text = fy_node_get_scalar0(node);
    size_t len = 0;
    fy_node_get_scalar(node, &len);
    if (text && strlen(text) == len)
        return text;
    if (text || len)
        error_set(why, ERR_USAGE, "a text holds a NUL; remove it");
    return text || len ? NULL : "";
}

int yaml_line(struct fy_node *node)
{
    struct fy_token *t = fy_node_get_scalar_token(node);
    const struct fy_mark *m = t ? fy_token_start_mark(t) : NULL;
    return m ? m->line + 1 : 0;
}

bool yaml_is_null(struct fy_node *node)
{
    static const char *const words[] = { "", "~", "null", "Null", "NULL" };
    const char *text = node && fy_node_is_scalar(node) ? fy_node_get_scalar0(node) : NULL;
    if (!node || fy_node_is_null(node))
        return true;
    for (size_t i = 0; text && fy_node_get_style(node) == FYNS_PLAIN && i < ARRAY_SIZE(words); i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

/* The first error that libfyaml found, with its line. */
static bool yaml_refused(struct fy_diag *diag, const char *path, struct error *err)
{
    void *it = NULL;
    struct fy_diag_error *e = fy_diag_errors_iterate(diag, &it);
    if (!e)
        return error_set(err, ERR_USAGE, "%s: not a YAML document", path);
    return error_set(err, ERR_USAGE, "%s:%d: %s", path, e->line > 0 ? e->line : 1, e->msg);
}

static int document_line(struct fy_document *doc)
{
    const struct fy_mark *m = fy_document_state_start_mark(fy_document_get_document_state(doc));
    return m ? m->line + 1 : 0;
}

bool yaml_open(struct yaml_file *y, const char *path, size_t max, const char *what, const char *lines, struct error *err)
{
    struct fy_diag_cfg diag_cfg;
    *y = (struct yaml_file){ .text = BUF_INIT };
    if (!file_read_text(&y->text, path, max, err)) {
        err->code = ERR_USAGE;
        return false;
    }
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    if (!(y->diag = fy_diag_create(&diag_cfg)))
        return error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
    fy_diag_set_collect_errors(y->diag, true);
    struct fy_parse_cfg cfg = { .flags = FYPCF_DEFAULT_DOC & ~FYPCF_RESOLVE_DOCUMENT, .diag = y->diag };
    y->parser = fy_parser_create(&cfg);
    if (!y->parser || fy_parser_set_string(y->parser, buf_text(&y->text), y->text.len) != 0)
        return error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
    y->doc = fy_parse_load_document(y->parser);
    /* NULL also for an error after the first document: that is an error */
    struct fy_document *second = y->doc ? fy_parse_load_document(y->parser) : NULL;
    bool ok = true;
    if (fy_parser_get_stream_error(y->parser))
        ok = yaml_refused(y->diag, path, err);
    else if (second)
        ok = error_set(err, ERR_USAGE, "%s:%d: a second document begins; %s is one, so remove the '---' or '...' before it", path,
                       document_line(second), what);
    fy_parse_document_destroy(y->parser, second);
    struct fy_node *root = y->doc ? fy_document_root(y->doc) : NULL;    // an empty file has none
    if (!ok || !root || yaml_is_null(root))
        return ok;
    y->root = root;
    return fy_node_is_mapping(root) || error_set(err, ERR_USAGE, "%s:1: %s is %s", path, what, lines);
}

void yaml_close(struct yaml_file *y)
{
    fy_parse_document_destroy(y->parser, y->doc);
    fy_parser_destroy(y->parser);
    fy_diag_destroy(y->diag);
    buf_release(&y->text);
    *y = (struct yaml_file){ .text = BUF_INIT };
}
