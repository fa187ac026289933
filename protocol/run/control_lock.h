/* control_lock.h - one operator at a time: who may command a run while somebody has taken its control
 *
 * The controller keeps the lock, agents hold those commands to it that they carry out themselves. Pure, but for operator_name. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

struct mval;
#define OPERATOR_NAME 128
/* Who sends commands from this process, as their who: "ann@head, ctl on pts/3", without the end where stdin is no terminal. */
void operator_name(char out[OPERATOR_NAME], const char *program);
struct control_lock {
    char holder[OPERATOR_NAME];    // as in a command's who; "": nobody has it
    double since_s;                // since 1970
};
/* May `who` command the run? force: in spite of the lock. ERR_REFUSED names holder and age, and the command that would work. */
MUST_USE bool control_lock_lets(const struct control_lock *l, const char *who, const char *command, bool force, double now_s,
                                struct error *err);
/* From a status' map lock; NULL: nobody has it. */
void control_lock_read(struct control_lock *l, const struct mval *v);
