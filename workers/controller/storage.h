/* storage.h - the disk under the run: groups that are synced before they are noted, and the journal's log */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct group_summary;
struct request;
struct storage;
MUST_USE bool storage_open(struct controller *c, struct error *err);    // once c->rollouts is open
void storage_close(struct controller *c);
/* Append a group to the rollout file; r is answered by group_note once it is on disk, and taken on success only. A group of an item that
 * is on its way already is not appended again. r NULL: the group of an item that has one, changed by an operator (amend_note). */
MUST_USE bool storage_put(struct controller *c, struct request *r, int64_t item, const struct group_summary *sum, const void *data,
                          size_t len, struct error *err);
bool storage_holds(const struct controller *c, int64_t item);    // is a group of the item on its way to the disk?
void storage_note(struct controller *c);                         // each turn of the loop: note what has reached the disk
void storage_tick(struct controller *c);                         // each turn of the loop; looks at the journal's log once a second
int64_t storage_due(const struct controller *c);
