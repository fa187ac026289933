#include "workers/worker/profile.h"
#include <stdio.h>
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "protocol/base/log.h"

#define PROFILE_EVENTS 300000    // of a timeline; later ones are only counted

bool profile_start(struct engine *e, struct error *err)
{
    return !e->config.enable_profiling || e->dev->trace || trace_start(e->dev, PROFILE_EVENTS, err);
}

void profile_write(struct engine *e)
{
    struct error err;
    char path[4200], name[32];
    if (!e->dev || !e->dev->trace)
        return;
    snprintf(name, sizeof name, "%s", e->device_name);
    for (char *c = name; *c; c++)
        *c = *c == ':' ? '-' : *c;
    snprintf(path, sizeof path, "%s/logs/profile-%s.json", e->run_dir, name);
    if (trace_stop(e->dev, path, &err))
        log_info("the timeline is in '%s'", path);
    else
        log_warn("no timeline is kept: %s", err.text);
}
