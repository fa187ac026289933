/* value.h - JSON values, compared as Python compares the values they represent
 *
 * 1 equals 1.0 and true, numbers of any length are exact, objects compare without order. An object with the same key
 * twice is refused: JSON turns every key into a string, so {1: 1, "1": 1} is written with two keys "1", and in Python
 * it equals neither an object with string keys nor one with numbers. One thread per struct json_value. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
enum json_value_kind {
    VALUE_NULL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STR,
    VALUE_LIST,
    VALUE_DICT,
};
struct json_value {
    enum json_value_kind kind;
    char *text;    // INT: its digits without leading zeros; STR: len bytes, UTF-8 (a lone surrogate as 3 bytes)
    size_t len;
    double number;               // FLOAT
    struct json_value **item;    // (n) LIST: members. DICT: (2n) keys and values in turn; keys are STR, in order and all different
    int64_t n;
};
/* Read one JSON value (NaN and Infinity too, as Python writes them) with nothing after it but white space; ERR_DATA names the
 * byte. A finite number too large for a double is refused: it is not infinity. Nested at most 256 deep. Returns it for value_free. */
struct json_value *value_read(const char *text, size_t len, struct error *err);
/* Equal as in Python; where the expected value holds a float, close to it (number.h). */
bool value_accepted(const struct json_value *got, const struct json_value *expected);
void value_free(struct json_value *v);
