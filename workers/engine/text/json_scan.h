/* json_scan.h - walk a large JSON text without building a tree: tokenizer.json holds half a million strings
 *
 * Strict about what it walks over (syntax, UTF-8, depth of at most 64); small parts are handed to jansson as byte
 * ranges. Errors name file and line. The text is borrowed. One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
struct json_scan {
    const char *name;    // for messages
    const char *text, *end, *at;
};
/* Skip white space; true when the next byte is c, which is then passed. */
bool json_scan_next(struct json_scan *s, char c);
/* As json_scan_next, but c must be there. */
MUST_USE bool json_scan_expect(struct json_scan *s, char c, struct error *err);
/* Read a string into out (emptied first), as UTF-8. A lone surrogate is an error. */
MUST_USE bool json_scan_string(struct json_scan *s, struct buf *out, struct error *err);
/* Read an integer that fits. */
MUST_USE bool json_scan_int(struct json_scan *s, int64_t *out, struct error *err);
/* Pass a value, checking its syntax. */
MUST_USE bool json_scan_skip(struct json_scan *s, struct error *err);
/* Pass a value and read it with jansson. NULL: see err. */
json_t *json_scan_value(struct json_scan *s, struct error *err);
/* Step through an object: false at its end or on an error (*ok says which). Call first with *first true. key gets the
 * member's name; its value must be read or skipped before the next call. */
bool json_scan_member(struct json_scan *s, bool *first, struct buf *key, bool *ok, struct error *err);
/* As json_scan_member, for an array. */
bool json_scan_item(struct json_scan *s, bool *first, bool *ok, struct error *err);
/* Is there only white space up to the end? Other parsers might read bytes after the document. */
MUST_USE bool json_scan_end(struct json_scan *s, struct error *err);
/* An error at the current place: "name:line: ...". */
bool json_scan_fail(const struct json_scan *s, struct error *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
