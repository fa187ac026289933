/* resume_flags.h - RUN_DIR/resume: settings changed by `train --resume`, until the controller has noted them, or made them changes of knobs
 *
 * Written by `train` before it rewrites run.yaml; consumed by the controller, the only process that knows which changes the run has
 * had since it began. Lines are appended, so that what a failed start left behind is not lost; a knob's last line counts. */
#pragma once
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* Add a line to text: knob name had the value before in run.yaml, and is now given value. */
MUST_USE bool resume_flags_add(struct buf *text, const char *name, const char *before, const char *value, struct error *err);
/* Append text's lines to the file and sync it. */
MUST_USE bool resume_flags_write(const char *run_dir, const struct buf *text, struct error *err);
/* Called for each line in order; when it fails, the reading fails with its error. Not called when there is no file. */
typedef bool resume_flags_fn(void *arg, const char *name, const char *before, const char *value, struct error *err);
MUST_USE bool resume_flags_read(const char *run_dir, resume_flags_fn *fn, void *arg, struct error *err);
/* Remove the file: the settings have been applied. */
void resume_flags_remove(const char *run_dir);
