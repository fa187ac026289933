/* normalizer.h - what a tokenizer does to a text before it looks for pieces: normal forms, marks for spaces
 *
 * Read from a tokenizer.json once, then only read: any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/text/unicode.h"

#define NORMAL_STEPS_MAX 16
struct normal_step {
    enum normal_form form;    // FORM_NONE: replace, or prepend
    struct buf from, to;      // to stands for every from; from empty: to goes before a text that is not empty
};
struct normalizer {
    struct normal_step step[NORMAL_STEPS_MAX];    // zero to start
    int n;
};
/* Read the normalizer of a tokenizer.json, which may be null; name is the file's. ERR_UNSUPPORTED names a kind that is not
 * supported. */
MUST_USE bool normalizer_read(struct normalizer *n, const json_t *spec, const char *name, struct error *err);
void normalizer_release(struct normalizer *n);
/* The normalised text: *p and *len become it, the text itself when nothing changes, else in one of the two buffers, whose limits
 * (buf.max) hold. */
MUST_USE bool normalizer_apply(const struct normalizer *n, const struct unicode *u, const uint8_t **p, size_t *len, struct buf work[2],
                               struct error *err);
/* Append text with `to` for every `from`. False: no memory. */
MUST_USE bool normal_replace(struct buf *out, const uint8_t *text, size_t len, const struct buf *from, const struct buf *to);
