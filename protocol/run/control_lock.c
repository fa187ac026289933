#include "protocol/run/control_lock.h"
#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/wire/message.h"

void operator_name(char out[OPERATOR_NAME], const char *program)
{
    char host[64] = "";
    const struct passwd *user = getpwuid(geteuid());
    const char *tty = ttyname(STDIN_FILENO);
    gethostname(host, sizeof host - 1);
    snprintf(out, OPERATOR_NAME, "%.40s@%.40s, %.16s%s%.20s", user ? user->pw_name : "?", host, program, tty ? " on " : "",
             tty && strncmp(tty, "/dev/", 5) == 0 ? tty + 5 : "");
}

bool control_lock_lets(const struct control_lock *l, const char *who, const char *command, bool force, double now_s, struct error *err)
{
    char age[32];
    double s = fmax(now_s - l->since_s, 0);
    if (!l->holder[0] || force || strcmp(l->holder, who) == 0)
        return true;
    snprintf(age, sizeof age, s < 120 ? "%.0f s" : s < 7200 ? "%.0f min" : "%.0f h", s < 120 ? s : s < 7200 ? s / 60 : s / 3600);
    return error_set(
        err, ERR_REFUSED,
        "%s has had control of the run for %s; 'rollcall ctl --force %s ...' carries it out all the same, and 'lock force' takes the "
        "control over",
        l->holder, age, command);
}

void control_lock_read(struct control_lock *l, const struct mval *v)
{
    mval_text(v, "holder", l->holder, sizeof l->holder);
    l->since_s = mval_f64(mval_get(v, "since"), 0);
}
