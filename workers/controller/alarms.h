/* alarms.h - the run's alarm book, judged after each optimizer step, and what follows
 *
 * quiet -> firing when a rule holds; firing -> acknowledged by an operator; both -> quiet when it holds no more; any -> muted and back by
 * an operator. The states are in the journal, so a controller that comes back goes on with them. When an alarm begins, an event says so,
 * with the change of knobs it follows, if that was less than ALARM_AFTER steps ago, and the rule's actions are taken. Owned by the
 * controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/settings/alarm_book.h"

#define ALARM_AFTER 20    // steps
#define ALARM_HELD (ALARM_PAST + ALARM_STEPS_MAX)

struct controller;
struct effect;
struct msg_out;
struct mval;
struct order;
struct alarm_now {
    enum alarm_state state;
    int64_t step;               // since when it holds
    char text[480];             // what is wrong; "" while it is quiet
    double past[ALARM_HELD];    // (n) values of the metric, the newest last
    int n;
};
struct alarms {
    struct alarm_book book;
    struct alarm_now now[ALARM_RULES];    // by rule
};
MUST_USE bool alarms_open(struct controller *c, struct error *err);    // RUN/alarms.yaml, and what the journal has
void alarms_step(struct controller *c);                                // a step is done: c->metrics has its numbers
void alarms_back(struct controller *c);                                // the run has gone back to c->step
void alarms_write(const struct controller *c, struct msg_out *m);      // the list alarms, as status has it
/* The commands ack, mute and unmute (orders.c). */
MUST_USE bool ack_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
MUST_USE bool mute_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
MUST_USE bool unmute_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
