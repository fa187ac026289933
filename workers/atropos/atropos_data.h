/* atropos_data.h - a scored group as an environment posts it, checked and brought into one form
 *
 * The form is Atropos' ScoredData (atroposlib 0.4, api/server.py): one JSON object with fourteen fields, of which tokens, masks
 * and scores are needed. What is kept is its text, ready to be sent to a trainer: all fourteen fields in their order, null when
 * absent, unknown fields left out. The long arrays of numbers are read by hand, at several hundred MB/s, since an environment
 * posts megabytes; everything else goes through jansson. Accepted as numbers are also 1.0, "7" and true, as pydantic does; a
 * number that is not finite is refused, because no trainer could read it. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/macros.h"

#define SCORED_SEQS_MAX 16384    // sequences of one group
#define SCORED_LIST_MAX 4096     // groups of one request

struct scored {
    int n_ref;
    int64_t id;         // from 1, by arrival; 0: not accepted yet
    int64_t n_seq;      // sequences
    int64_t env_id;     // of the environment; -1: it gave none
    int64_t version;    // in a run: optimizer steps of the weights that drew it, or of those at its arrival
    int64_t place;      // where the log keeps it (atropos_log.h)
    size_t len;
    char text[];    // (len) the object, NUL-terminated
};
/* What is wrong with a request, in pydantic's words. */
struct scored_fault {
    const char *type;    // "missing", "json_invalid"; static
    char loc[160];       // a JSON array: ["body",0,"tokens"]
    char msg[240];
    bool no_memory;    // nothing is wrong with the request
};
/* Read one object, or a list of them, into group: (*n) each with one reference, for scored_drop. max: room of group.
 * False: see fault; nothing is returned. */
MUST_USE bool scored_read(const char *text, size_t len, struct scored **group, struct scored_fault *fault);
MUST_USE bool scored_read_list(const char *text, size_t len, struct scored **group, int64_t max, int64_t *n, struct scored_fault *fault);
/* A group from its stored text, with the id, size, environment and version of like. NULL: no memory. */
struct scored *scored_new(const struct scored *like, const char *text, size_t len);
void scored_hold(struct scored *g);
void scored_drop(struct scored *g);    // NULL is fine
/* Memory that a group takes, with what a queue needs for it. */
size_t scored_bytes(const struct scored *g);
/* The answer to a faulty request: {"detail":[{"type", "loc", "msg", "input"}]}. */
void scored_fault_print(struct buf *out, const struct scored_fault *fault);
