/* resumed.h - settings given to `train --resume`, until they have become changes of knobs
 *
 * run.yaml has them already; the run goes on with them from where it resumes, as with any change. Those that only a start can change are
 * an event, with the value before. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

struct controller;
struct resumed;
void resumed_free(struct resumed *r);    // NULL is fine
/* Look whether settings were given: then c->now is as it was without them, and c->resumed holds them. */
MUST_USE bool resumed_read(struct controller *c, struct error *err);
/* Make them changes, from where the run goes on; once the ledger is there. A proposal that is not possible fails the run, and so does a
 * run.yaml that is not what the journal keeps (settings_kept.h), when nobody has given anything at a resume. */
MUST_USE bool resumed_apply(struct controller *c, struct error *err);
