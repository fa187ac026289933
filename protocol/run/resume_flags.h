/* resume_flags.h - RUN_DIR/resume: settings given with `train --resume`, until the controller has made them changes of knobs
 *
 * Written by `train` before it writes run.yaml anew; taken by the controller, the only one that knows which changes the run has had
 * since it began. Lines are added, so that what a start that came to nothing has left is not lost; the last word of a knob counts. */
#pragma once
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* Add a line to text: knob name was before in run.yaml, and value is given. */
MUST_USE bool resume_flags_add(struct buf *text, const char *name, const char *before, const char *value, struct error *err);
/* Append text's lines to the file, and have them on disk. */
MUST_USE bool resume_flags_write(const char *run_dir, const struct buf *text, struct error *err);
/* Called for each line in order; what it fails with, the reading fails with. No file: nothing is called. */
typedef bool resume_flags_fn(void *arg, const char *name, const char *before, const char *value, struct error *err);
MUST_USE bool resume_flags_read(const char *run_dir, resume_flags_fn *fn, void *arg, struct error *err);
/* They have been taken. */
void resume_flags_remove(const char *run_dir);
