/* groups.h - rollout groups: taken from producers, kept, and given to trainers */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct controller;
struct group_summary;
struct msg_in;
struct request;
void group_came(struct controller *c, struct request *r, const struct msg_in *in);
/* What storage_put was given is on disk: the group belongs to the run. sum: with its place in the file. */
void group_note(struct controller *c, struct request *r, const struct msg_in *in, const struct group_summary *sum, const void *data,
                size_t len);
/* Is the group (or stopped item) of a message wanted, or known already? False: neither, and r is refused. */
bool group_is_ours(struct controller *c, struct request *r, const struct msg_in *in, bool *known);
void fetch_asked(struct controller *c, struct request *r, const struct msg_in *in);
