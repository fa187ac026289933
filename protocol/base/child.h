/* child.h - start another program: the one way to do it
 *
 * Our loops block the signals that they take from a descriptor, and ignore others; a program inherits both, and would then be deaf to
 * Ctrl-C or to the TERM that 'timeout' sends. What is started here takes all signals. Any thread. */
#pragma once
#include <spawn.h>
#include <sys/types.h>
#include "protocol/base/error.h"

enum child_flags {
    CHILD_OURS = 1,       // a process of ours: what it always ignores (SIGPIPE, SIGXFSZ) stays ignored from its first instruction
    CHILD_SESSION = 2,    // in a session of its own, so that it outlives the terminal
};
/* Start file (on the PATH when it holds no slash) with argv and env (NULL: ours). actions: on its descriptors, or NULL. Returns 0, or an
 * errno. */
int child_spawn(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, int flags, char *const argv[], char *const env[]);
/* The exit status that a shell shows for a wait status: the program's own, or 128 and the signal that ended it. */
int child_exit(int wait_status);
/* Why what (a name in an error), a program or a thread, was not started, from that errno: "cannot start it: ...", and which limit to
 * raise. Returns false. */
bool child_unspawned(int code, const char *what, struct error *err);
