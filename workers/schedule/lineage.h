/* lineage.h - which incarnation made which optimizer step
 *
 * A version of the weights is known by its number of optimizer steps and by the incarnation that made it, since after a return its
 * number may come again with other weights. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct journal;
struct lineage {
    struct lineage_part {
        int64_t incarnation, from;    // it made the steps beyond from, up to the next part's
    } * part;                         // (n) owned; from grows
    int64_t n, cap;
};
void lineage_release(struct lineage *l);
MUST_USE bool lineage_load(struct lineage *l, struct journal *j, struct error *err);    // from the journal's incarnations
/* From here on incarnation makes the steps beyond from; those that others have made there are undone. */
MUST_USE bool lineage_turn(struct lineage *l, int64_t incarnation, int64_t from, struct error *err);
/* The incarnation that made version, or will; 0: none, these are the weights the run began with. */
int64_t lineage_made(const struct lineage *l, int64_t version);
