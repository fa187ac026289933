/* doctor.h - the sentence that a console shows of a run: what only a console sees is wrong, else what the run's controller says; pure */
#pragma once
#include "console/fleet/run_view.h"
#include "protocol/run/doctor.h"

struct diagnosis doctor_say(const struct run_view *m, int64_t now_ns);
struct diagnosis doctor_summary(const struct run_view *m);    // what has bound the run in the steps that are known, whatever its state
