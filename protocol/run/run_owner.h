/* run_owner.h - which run a folder belongs to
 *
 * A run has an id, made once, in RUN/run.id. Each folder it keeps checkpoints, evaluations or rollouts in holds the file .rollcall-run
 * with that id and the run's directory, and each checkpoint and evaluation record holds the id. So two runs that are given one folder
 * cannot destroy each other's files, nor load them. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define RUN_ID_BYTES 40

/* The run's id; made when the run has none. */
MUST_USE bool run_id_make(const char *run_dir, char id[RUN_ID_BYTES], struct error *err);
/* The run's id; "" when it has none (it is to be made, or was made by an older rollcall). */
MUST_USE bool run_id_read(const char *run_dir, char id[RUN_ID_BYTES], struct error *err);
/* May the run with this id keep things in folder? id "": a run that is to be made, which may not take a folder that holds what a run has
 * left, either. setting: the one that names the folder. ERR_EXISTS names both runs and says what to do. A missing folder is fine. */
MUST_USE bool folder_check(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err);
/* The same for a run that has an id, and from now on the folder is the run's; it is made when missing. */
MUST_USE bool folder_take(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err);
