/* record.h - sessions that have ended, on disk: what the program asked, which tokens answered it, and the reward
 *
 * A reward that was acknowledged to a session's program must count, whatever is killed before its group is with the controller. So the
 * session is written here first, and when its item is sampled again, as by a worker that was killed, the record asks the same questions in
 * the program's place: the same weights and seeds draw the same tokens, and the reward is the one that was taken. Where other tokens are
 * drawn (other weights), the record does not fit and the program starts over.
 *
 * A file for each session, RUN/harness/ITEM.SAMPLE; those of the lowest items go when there are too many. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"

struct records;
/* Open the folder dir, made when it is not there. NULL: see err. */
struct records *records_new(const char *dir, struct error *err);
void records_free(struct records *r);    // NULL is fine
/* Write a session's record; on success it is on the disk. record is borrowed. r NULL: nothing is kept. */
MUST_USE bool records_put(struct records *r, int64_t item, int64_t sample, const json_t *record, struct error *err);
/* The record of a session, a new reference; NULL: there is none that can be read. */
json_t *records_get(struct records *r, int64_t item, int64_t sample);
void records_drop(struct records *r, int64_t item, int64_t sample);    // there may be none
