/* json_text.h - pieces of JSON written into a buffer, and texts from outside as jansson's values
 *
 * For text that is printed piece by piece in large amounts; objects that are built and read go through jansson. Any thread. */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

enum json_text_form {
    JSON_TEXT_UTF8,
    JSON_TEXT_ASCII,
};    // only ASCII: everything else is escaped, as Python's json.dumps does
/* A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_text_print(struct buf *out, const char *s, size_t len, enum json_text_form form);
/* A number with the fewest digits that read back to the same double; NaN, Infinity and -Infinity as bare words. */
void json_number_print(struct buf *out, double v);
/* text as a JSON value. When it is not UTF-8, every non-ASCII byte becomes '?', so that a bad name from outside does not lose the
 * line. Returns it for json_decref; NULL: no memory. */
json_t *json_text_new(const char *text);
/* json_loadb, which takes want of memory for a fault of the text ("invalid token"), or reads on without a character. Here why says so
 * then, and what is wrong with the text otherwise. Returns a value for json_decref, or NULL. */
json_t *json_text_read(const char *text, size_t len, size_t flags, json_error_t *why);
/* What a failure of json_text_read is: ERR_NO_MEMORY or ERR_DATA. */
enum error_code json_text_code(const json_error_t *why);
/* json_text_read of a file's content. On failure err says "'path':LINE: not valid JSON: ...", or that there is no memory. */
json_t *json_text_parse(const char *text, size_t len, size_t flags, const char *path, struct error *err);
