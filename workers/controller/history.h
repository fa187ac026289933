/* history.h - questions about what has been: past steps and events, out of the journal */
#pragma once

struct controller;
struct msg_in;
struct request;
void steps_asked(struct controller *c, struct request *r, const struct msg_in *in);
void events_asked(struct controller *c, struct request *r, const struct msg_in *in);
