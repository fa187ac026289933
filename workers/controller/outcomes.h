/* outcomes.h - how a command has ended: kept in the journal by its id, so that asking again gives the same answer */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct request;
/* Has this command ended before? Then r is answered as it was then. *known is false otherwise. */
MUST_USE bool outcome_again(struct controller *c, struct request *r, const char *id, bool *known, struct error *err);
/* It has taken effect: journal, event and answer. detail: of the event, JSON or "". */
void outcome_ok(struct controller *c, struct request *r, const char *id, const char *who, const char *text, const char *detail);
void outcome_failed(struct controller *c, struct request *r, const char *id, const char *who, const struct error *why);
