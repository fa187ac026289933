/* run_owner.h - which run a folder belongs to
 *
 * A run has an id, made once, in RUN/run.id. Each folder in which it keeps checkpoints, evaluations or rollouts holds the file
 * .rollcall-run with that id and the run's directory, and each checkpoint and evaluation record holds the id. So two runs that are
 * given the same folder can neither destroy nor load each other's files. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define RUN_ID_BYTES 40

/* The run's id; created when the run has none. */
MUST_USE bool run_id_make(const char *run_dir, char id[RUN_ID_BYTES], struct error *err);
/* The run's id; "" when it has none (the run does not exist yet, or an older rollcall made it). */
MUST_USE bool run_id_read(const char *run_dir, char id[RUN_ID_BYTES], struct error *err);
/* May the run with this id keep files in folder? id "": a run that does not exist yet; it may not take a folder with another run's
 * files either. setting: the one that names the folder. ERR_EXISTS names both runs and says what to do. A missing folder is fine.
 * */
MUST_USE bool folder_check(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err);
/* As folder_check, for a run that has an id. From now on the folder belongs to the run; it is created when missing. */
MUST_USE bool folder_take(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err);
