/* fields.h - typed, bounded fields of a JSON object, for config.json
 *
 * Reads borrow the object; an error names file, key and what is wrong. Any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

/* A parse in progress: which object is read and what to say about it. All borrowed. */
struct fields {
    const json_t *obj;
    const char *path;      // of the file
    const char *prefix;    // "" or "rope_scaling."
};
bool field_given(const struct fields *f, const char *key);    // there, and not null
/* Read a field that must be there. False: missing, of another type or out of [min, max]; *out is unchanged. */
MUST_USE bool field_int(const struct fields *f, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err);
MUST_USE bool field_real(const struct fields *f, const char *key, double min, double max, double *out, struct error *err);
MUST_USE bool field_bool(const struct fields *f, const char *key, bool *out, struct error *err);
