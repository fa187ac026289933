/* alarm_book.h - what practitioners watch for: rules over a step's metrics, their defaults, and the file alarms.yaml that changes them
 *
 * The controller judges by the run's book (workers/controller/alarms.h); here is what a rule says, and whether it holds. Pure but for
 * reading the file; one thread per struct. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define ALARM_RULES 64        // in a book
#define ALARM_PAST 33         // values of a metric that a rule may look at: the step, and 32 before it
#define ALARM_STEPS_MAX 16    // "steps" of a rule

enum alarm_when {
    ALARM_ABOVE,           // value > limit
    ALARM_BELOW,           // value < limit
    ALARM_EQUALS,          // value == limit
    ALARM_TIMES_MEDIAN,    // value > limit x median of up to 32 values before it, at least 8
    ALARM_BELOW_MEDIAN,    // value < limit x that median
    ALARM_RISES,           // value > the one before, or > 0 at the first step
    ALARM_WHEN_N,
};
enum alarm_action {    // bits: what follows when an alarm begins, besides the event
    ALARM_BELL = 1,
    ALARM_PAUSE = 2,
    ALARM_CHECKPOINT = 4,
    ALARM_ROLLBACK = 8,
};
enum alarm_state {
    ALARM_QUIET,
    ALARM_FIRING,
    ALARM_ACKNOWLEDGED,    // it holds, and an operator has seen it
    ALARM_MUTED,           // it is not looked at until it is unmuted
};
struct alarm_rule {
    char name[48];
    char metric[64];
    enum alarm_when when;
    double limit;
    int64_t steps;    // it must hold for this many in a row
    bool critical;    // else a warning
    bool on;
    char text[160];       // "{}" stands for the value
    char remedy[200];     // what to try first
    char command[256];    // run by a shell when the alarm begins; "": none
    unsigned actions;     // enum alarm_action
};
struct alarm_book {
    struct alarm_rule rule[ALARM_RULES];    // (n)
    int n;
};
void alarm_book_init(struct alarm_book *b);    // the defaults
/* Change b by a file: NAME: {field: value, ...}. A name that b has changes in the fields given; a new one needs a metric and a
 * condition. ERR_USAGE names file, line and field. */
MUST_USE bool alarm_book_read(struct alarm_book *b, const char *path, struct error *err);
void alarm_book_print(const struct alarm_book *b, struct buf *out);                        // as such a file
const struct alarm_rule *alarm_rule_find(const struct alarm_book *b, const char *name);    // NULL: none
/* Which file a run's book comes from: alarms.yaml next to the run file, else in ~/.config/rollcall ($XDG_CONFIG_HOME). "": neither. */
void alarm_book_find(const char *run_file, char *path, size_t size);

/* Does r hold at the last of n values (oldest first; NAN: unknown)? With its number of steps in a row. */
bool alarm_holds(const struct alarm_rule *r, const double *value, int n);
/* What is wrong, with the value. */
void alarm_say(const struct alarm_rule *r, double value, char *out, size_t size);
const char *alarm_state_name(enum alarm_state s);
enum alarm_state alarm_state_find(const char *name, size_t len);    // ALARM_QUIET for others
const char *alarm_when_name(enum alarm_when w);
enum alarm_when alarm_when_find(const char *name);    // ALARM_WHEN_N: none
/* "bell, pause" into out; "": none. Returns out. */
const char *alarm_actions_text(unsigned actions, char out[64]);
