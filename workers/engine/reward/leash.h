/* leash.h - a process that holds a user's program, and ends all that the program has started
 *
 * A program may start others and leave them: in a group or a session of their own, or as orphans. So it is the child of a process of
 * ours to which the kernel gives the orphans (a "child subreaper", prctl(2)), and which kills its children until none is left: when the
 * program has ended, when leash_end is called, and when the process that started it is gone, however that ended.
 *
 * The program's standard error goes through that process, which passes on the first MiB, and at the program's end the last 8 KiB of more,
 * with how much is left out between them.
 *
 * It is this executable again under another name, which never comes to main: a forked copy would keep our memory. One thread at a time. */
#pragma once
#include <stdint.h>
#include <sys/types.h>
#include "protocol/base/error.h"

struct leash {
    pid_t pid;     // 0: it holds nothing
    int end;       // the other end is all that it waits on besides its children; never written. poll says POLLERR when the leash has ended
    int status;    // after leash_end: the program's exit status, or 128 and the signal that ended it; 0: it was ended from here
};
/* Have /bin/sh run command, with in and out as descriptors 0 and 1, and errors as 2 (0: ours), and with env (NULL: ours); all are
 * borrowed for the call. what: the program in an error, "the reward program 'x'". */
MUST_USE bool leash_start(struct leash *l, const char *command, int in, int out, int errors, char *const env[], const char *what,
                          struct error *err);
/* Wait for the end of the program, at most wait_ms, and of all that it has started, which is killed. */
void leash_end(struct leash *l, int64_t wait_ms);
