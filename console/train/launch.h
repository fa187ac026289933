/* launch.h - rollcall train --slurm: one agent on each of several machines, the first of which is the run's head
 *
 * The starter makes the run's directory with RUN/launch (mode 0700) and the join token RUN/sock/join (0600), writes a job script and
 * submits it; inside an allocation it calls srun itself. The script starts `rollcall launch --run RUN` once per node. Task 0 becomes
 * the head: it notes where it is reached in RUN/launch/head (run_head.h) and runs `rollcall train`, or `train --resume` when the run
 * has begun. The others wait for that note and run `rollcall agent --join`. So the directory must be on a file system that all
 * nodes share; the token is never in a command line. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define LAUNCH_PLAN "launch/plan.json"
#define LAUNCH_SCRIPT "launch/job.sh"
#define LAUNCH_LOG "launch/slurm.log"
#define LAUNCH_EXIT "launch/exit"              // the head's exit status; absent: it has not ended by itself
#define LAUNCH_VARIABLE "ROLLCALL_LAUNCHED"    // names the run's directory to the `rollcall train` of a head
#define LAUNCH_PORT 29506                      // first of those tried for nodes to join at

struct launch {
    bool slurm;
    int64_t nodes;                          // machines, the head among them
    int64_t gpus;                           // per node; 0: none is asked for, nodes sample on their processors
    int64_t cpus;                           // per node; 0: what Slurm gives by itself
    int64_t port;                           // where nodes join
    int64_t wait_s;                         // time for all nodes to join, and for a node to find the head
    int64_t lost_s;                         // a head that no node has reached for this long is lost: the job is requeued
    const char *partition, *time, *more;    // for sbatch; "": not given; borrowed from argv
    const char *dir;                        // folder on each node's own disk for what it fetches; "": $TMPDIR or /tmp
    char **word;                            // the rest of the command line, for the head; owned list of borrowed words
    int n_word;
};
/* Take --slurm's NAME=VALUE words out of argv, and keep in l the words that the head needs. Returns the new argv (owned list of
 * borrowed words), without those words but with --slurm itself; NULL: see err. */
char **launch_words_take(struct launch *l, int *argc, char **argv, struct error *err);
void launch_release(struct launch *l);

/* ---- launch_slurm.c ---- */
/* The job script for the run in run_dir, called name; rollcall: the path of this program. */
MUST_USE bool launch_script(const struct launch *l, const char *run_dir, const char *name, const char *rollcall, struct buf *out,
                            struct error *err);
/* Write plan, token and script into run_dir, and submit the job; inside an allocation, run it there, in the foreground. Once it
 * has been accepted, says on stdout where to look. */
MUST_USE bool launch_submit(const struct launch *l, const char *run_dir, const char *name, bool resume, struct error *err);

/* ---- launch_step.c: subcommand launch ---- */
/* Was run_dir made by a starter for this process, and has nothing begun in it yet? Then a new run may take it. */
bool launch_awaits(const char *run_dir);
