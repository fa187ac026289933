/* status.h - how the run stands, for heartbeat and status; and what the agent has for the journal */
#pragma once

struct controller;
struct msg_in;
struct msg_out;
struct request;
void detail_write(void *ctx, struct msg_out *m);    // the fields of the answer to status that are the controller's; ctx: it
void status_asked(struct controller *c, struct request *r, const struct msg_in *in);
void event_told(struct controller *c, struct request *r, const struct msg_in *in);    // an event or a node's figures
