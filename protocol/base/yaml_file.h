/* yaml_file.h - a file of one YAML document that people write: opened, with the place of each key for messages
 *
 * Values are read with libfyaml's own functions. One thread per struct. */
#pragma once
#include <libfyaml.h>
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct yaml_file {
    struct buf text;
    struct fy_diag *diag;
    struct fy_parser *parser;
    struct fy_document *doc;
    struct fy_node *root;    // the top mapping; NULL: the file is empty
};
/* Open and parse path, at most max bytes. what: "a run file", lines: what its lines look like, for messages. ERR_USAGE names file and line.
 * yaml_close also after a failure. */
MUST_USE bool yaml_open(struct yaml_file *y, const char *path, size_t max, const char *what, const char *lines, struct error *err);
void yaml_close(struct yaml_file *y);
int yaml_line(struct fy_node *node);    // of a scalar, from 1; 0: unknown
/* The text of a scalar; NULL and why when it holds a NUL (written as an escape), since the rest would be lost. */
const char *yaml_text(struct fy_node *node, struct error *why);
/* Is a value not given: absent, or a plain null or ~ (YAML 1.2, 10.3.2; libfyaml itself takes the words for text)? */
bool yaml_is_null(struct fy_node *node);
