/* spawn.h - start a run's processes and find the living ones
 *
 * A process of a run keeps its id in RUN/sock/NAME.pid and is recognised by its command line, which holds the run's directory and
 * the process's name. The run's lock (protocol/run/run_lock.h) is one open file description that every process of the run inherits
 * (descriptor RUN_LOCK_FD): it is held until the last of them has ended, however they end. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/base/error.h"

#define RUN_LOCK_FD 3
#define RUN_PROCESSES_MAX 256    // of one run on one host

/* Start `rollcall COMMAND --run run_dir --name name`, its output appended to RUN/logs/NAME.log, RUN_LOCK_FD from lock_fd.
 * session: in its own session, so that it outlives the terminal. -1 on failure. */
pid_t process_spawn(const char *command, const char *run_dir, const char *name, int lock_fd, bool session, struct error *err);
/* The living process of this name, by its pid file and command line; 0: none. */
pid_t process_find(const char *run_dir, const char *name);
/* How a process ended, from its wait status: "ended with status 1", "was killed by signal 11 (SIGSEGV)". */
void process_end_words(int status, char *out, size_t size);
/* Write our own pid file. */
MUST_USE bool process_note(const char *run_dir, const char *name, struct error *err);
struct run_process {
    pid_t pid;
    char name[64];
};
/* The run's living processes except this one, at most max of them; returns how many. */
int run_processes(const char *run_dir, struct run_process *out, int max);
/* Kill every process of the run at once: keeper and agent first, then the rest. */
void run_kill(const char *run_dir);
/* Remove the weights that trainers left in sock/ for producers, when the run starts and when it ends: after a restart the same
 * version may name other weights. */
void run_weights_remove(const char *run_dir);
/* Write the last line of a process's log into out; "" when there is none. */
void log_last_line(const char *run_dir, const char *name, char *out, size_t size);
/* The file that holds the process id for a name: "worker cpu:0" -> "worker-cpu-0". */
void process_file_name(const char *name, char *out, size_t size);
