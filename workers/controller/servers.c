#include "workers/controller/servers.h"
#include <stdio.h>
#include <string.h>
#include "protocol/run/doctor.h"
#include "protocol/wire/message.h"
#include "workers/controller/controller.h"

/* What was heard of the server with this name. NULL: it has the newest weights. */
static const struct server_seen *seen_find(const struct servers *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->server[i].name, name) == 0)
            return &s->server[i];
    return NULL;
}

static const char *sentence(const struct server_seen *s, char *out, size_t size)
{
    snprintf(out, size, "%s, from which environments draw, has been without the newest weights for %.0f s: %s", s->name, s->behind_s,
             s->trouble);
    return out;
}

/* Those that were told of and are behind no longer. */
static void recovered_tell(struct controller *c, const struct servers *before)
{
    char text[400];
    for (int i = 0; i < before->n; i++) {
        if (!before->server[i].told || seen_find(&c->servers, before->server[i].name))
            continue;
        snprintf(text, sizeof text, "%s has the newest weights again", before->server[i].name);
        event_add(c, "weights", "controller", text, "");
    }
}

void servers_heard(struct controller *c, const struct mval *list)
{
    struct servers before = c->servers;
    char text[600];
    if (!list)
        return;
    c->servers.n = (int)MIN(mval_n(list), (int64_t)SERVERS_MAX);
    for (int i = 0; i < c->servers.n; i++) {
        struct server_seen *s = &c->servers.server[i];
        mval_text(mval_at(list, i), "name", s->name, sizeof s->name);
        mval_text(mval_at(list, i), "trouble", s->trouble, sizeof s->trouble);
        s->behind_s = mval_f64(mval_get(mval_at(list, i), "behind_s"), 0);
        const struct server_seen *was = seen_find(&before, s->name);
        s->told = was && was->told;
        if (run_is_over(c) || c->state == RUN_STOPPING)
            continue;
        if (!s->told && s->behind_s >= c->now.slow_s) {
            s->told = true;
            event_add(c, "alert", "controller", sentence(s, text, sizeof text), "");
        }
        if (s->behind_s >= c->config.engine_patience_s)
            run_fail(c, "%s ('engine_patience_s' is %g)", sentence(s, text, sizeof text), c->config.engine_patience_s);
    }
    recovered_tell(c, &before);
}

bool servers_judge(const struct controller *c, struct diagnosis *d)
{
    const struct server_seen *worst = NULL;
    char text[600];
    for (int i = 0; i < c->servers.n; i++)
        if (c->servers.server[i].told && (!worst || c->servers.server[i].behind_s > worst->behind_s))
            worst = &c->servers.server[i];
    if (!worst)
        return false;
    d->kind = DIAGNOSIS_CRIT;
    d->name = "servers";
    snprintf(d->text, sizeof d->text, "%.279s", sentence(worst, text, sizeof text));
    snprintf(d->remedy, sizeof d->remedy,
             "see whether it runs, takes weights and is the one that 'engine_url' or 'weight_bridge_file' names; after %g s the run fails "
             "('engine_patience_s')",
             c->config.engine_patience_s);
    return true;
}
