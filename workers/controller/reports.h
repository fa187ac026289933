/* reports.h - what workers report as done: steps, checkpoints, evaluations, loads, and what did not come about */
#pragma once

struct controller;
struct msg_in;
struct request;
void done_came(struct controller *c, struct request *request, const struct msg_in *in);
