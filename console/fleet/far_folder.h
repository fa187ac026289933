/* far_folder.h - the folder of a run on another machine, as far as a console shows it: logs, samples of hosts and GPUs, rollout groups
 *
 * The panes read a run's folder. For a far run (protocol/run/run_far.h) that is a folder here, which this module fills with what the run's
 * agent sends (the message kept), a piece at a time. Bounded: of each log file the newest 1 MiB, the newest 20,000 samples when it
 * begins, the newest 2,000 items when it begins, and 256 MiB of groups; after that, items come without theirs. Owned by the link. */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/message.h"

struct far_folder;
/* dir: stands for the run's folder; it and its folder logs are there. NULL: see err. */
struct far_folder *far_folder_new(const char *dir, struct error *err);
void far_folder_free(struct far_folder *f);    // NULL is fine; the folder stays
/* Begin the next question in m; false: none is due. The answer goes to far_folder_take before the next one. incarnation: when it has
 * changed, the run went back to a checkpoint, and items are asked for again. */
MUST_USE bool far_folder_ask(struct far_folder *f, struct msg_out *m, int64_t incarnation, int64_t now_ns);
/* root NULL: there was no answer. False: what came cannot be kept; the console goes on without it. */
MUST_USE bool far_folder_take(struct far_folder *f, const struct mval *root, int64_t now_ns, struct error *err);
