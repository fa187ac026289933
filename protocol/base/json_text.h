/* json_text.h - pieces of JSON written into a buffer, and texts from outside as jansson's values
 *
 * For text that is printed piece by piece in large amounts; objects that are built and read go through jansson. Any thread. */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include "protocol/base/buf.h"

enum json_text_form {
    JSON_TEXT_UTF8,
    JSON_TEXT_ASCII,
};    // ASCII: what lies beyond it is escaped, as Python's json.dumps does
/* A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_text_print(struct buf *out, const char *s, size_t len, enum json_text_form form);
/* A number with as few digits as read back to the same double; NaN, Infinity and -Infinity as bare words. */
void json_number_print(struct buf *out, double v);
/* text as a value. When it is not UTF-8 every byte beyond ASCII becomes '?': a name from outside must not cost the line. Returns it
 * for json_decref; NULL: no memory. */
json_t *json_text_new(const char *text);
