/* export_kinds.h - the kinds of export: the one list of them
 *
 * Behind 'rollcall export KIND RUN_DIR', behind the exporters that an agent starts with a run, and behind what other nodes of the run
 * leave off: a run's exporters are with its journal, on the head. Read-only data: any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

enum export_kind {
    EXPORT_CSV,
    EXPORT_JSONL,
    EXPORT_HTML,
    EXPORT_SVG,
    EXPORT_TENSORBOARD,
    EXPORT_WANDB,
    EXPORT_WEBHOOK,
    EXPORT_OPENMETRICS,
    EXPORT_KIND_N,
};
struct export_kind_row {
    const char *name;
    const char *setting;    // a run has such an exporter when this setting is not its default; NULL: never
    const char *help;       // one line
};
extern const struct export_kind_row export_kinds[EXPORT_KIND_N];
/* Does the run want an exporter of this kind while it goes on? */
bool export_wanted(const struct run_config *c, enum export_kind kind);
/* Set every setting by which one is wanted back to its default. */
MUST_USE bool exports_leave_off(struct run_config *c, struct error *err);
