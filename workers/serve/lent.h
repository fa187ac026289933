/* lent.h - weights that a trainer lends to this server: hold them, let go when they change, find them again when the trainer was restarted
 *
 * Between the policy and the trainer's board and file (workers/engine/publish). On the policy's thread, after lent_open. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/publish/lent_file.h"

struct lent;
struct model;
/* Join the trainer whose file this is; f says what it lends. NULL: see err; ERR_NOT_FOUND: it is not there. */
struct lent *lent_open(const char *path, struct error *err);
void lent_free(struct lent *l);    // NULL is fine; before the model
const struct lent_file *lent_about(const struct lent *l);
/* The model that computes with them, of the file's directory and type. NULL: see err. */
struct model *lent_model(const struct lent *l, struct device *dev, struct error *err);

enum lent_state {
    LENT_HELD,     // they may be used until lent_release
    LENT_LATER,    // they change at present
    LENT_GONE,     // the trainer is not there, as err says; m has no weights
};
/* Hold the weights, after at most wait_ms; try to find a trainer that was restarted. *moved: m has other memory than before, and what was made
 * from it (runs, recordings) is to be made again. *changed: the weights are others; m's handles are up to date. */
enum lent_state lent_hold(struct lent *l, struct model *m, int64_t wait_ms, bool *moved, bool *changed, struct error *err);
void lent_release(struct lent *l);
bool lent_is_held(const struct lent *l);
bool lent_wanted(const struct lent *l);        // the trainer waits for them
bool lent_clean(const struct lent *l);         // while held: nobody has touched them
int64_t lent_version(const struct lent *l);    // of the weights that were held last
