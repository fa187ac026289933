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

/* ---- texts from outside ----
 *
 * JSON as Python's json.dumps writes it is more than jansson reads. Every text is read here, and every value written here, so:
 *   integers beyond 64 bits, NaN, Infinity, -Infinity   a string: JSON_ODD, then the number as it was spelled. jansson has no number for
 *     and reals beyond a double (1e400: Infinity)        it; whoever asks for a number finds none. json_text_dump writes it as it came
 *   \u0000                                             kept with JSON_ALLOW_NUL, else and in names U+FFFD
 *   lone surrogates, and JSON_ODD at a string's begin   U+FFFD
 *   a byte order mark before the value                  passed
 * Everything else is as strict as jansson: syntax, UTF-8, depth (2048), and what the flags ask for. */

#define JSON_STANDARD                                                                                                                      \
    ((size_t)1 << 30)              // a flag: only what JSON's standard has, for texts that are handed on to other readers as they are
#define JSON_ODD "\xef\xb7\x90"    // U+FDD0, which Unicode keeps for a program's own use

/* json_loadb for such texts. jansson takes want of memory for a fault of the text ("invalid token"), or reads on without a character;
 * here why says so then, and what is wrong with the text otherwise. With JSON_DISABLE_EOF_CHECK why->position is where the value ends.
 * why may be NULL, and so may text. Returns a value for json_decref, or NULL. */
json_t *json_text_read(const char *text, size_t len, size_t flags, json_error_t *why);
/* json_text_read of a text that ends with a NUL. */
json_t *json_str_read(const char *text, size_t flags, json_error_t *why);
/* How a number is spelled that jansson cannot hold ("NaN", "1000000000000000000000"); borrowed from v. NULL: v is anything else. */
const char *json_odd_text(const json_t *v);
/* v as a double, which may be NaN or infinite. False: v is no number. */
bool json_double_get(const json_t *v, double *out);
/* json_dumps, with such numbers bare as they came. Returns it for free; NULL: no memory, or v holds what JSON cannot. */
char *json_text_dump(const json_t *v, size_t flags);
/* What a failure of json_text_read is: ERR_NO_MEMORY or ERR_DATA. */
enum error_code json_text_code(const json_error_t *why);
/* json_text_read of a file's content. On failure err says "'path':LINE: not valid JSON: ...", or that there is no memory. */
json_t *json_text_parse(const char *text, size_t len, size_t flags, const char *path, struct error *err);
