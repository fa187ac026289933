#include "workers/controller/rounds.h"
#include <stdio.h>
#include <sys/random.h>
#include "kernels/collective/collective.h"
#include "workers/controller/controller.h"
#include "workers/controller/workers.h"
#include "workers/engine/trainer/ranks.h"

bool rounds_load(struct controller *c, struct error *err)
{
    struct rounds *r = &c->rounds;
    if (!number_get(c, "round", 0, &r->round, err) || !number_get(c, "begun", -1, &r->begun, err)
        || !number_get(c, "saves", 0, &r->saves, err) || !number_get(c, "saving", -1, &r->saving, err))
        return false;
    if (c->config.num_trainers == 1)    // before a resume there may have been more
        *r = (struct rounds){ .begun = -1, .saving = -1 };
    return true;
}

void rounds_call_off(const struct controller *c)
{
    char dir[4200], name[64];
    snprintf(dir, sizeof dir, "%s/sock", c->process.run_dir);
    for (int q = 0; q < run_config_trainer_devices(&c->config) && c->rounds.round; q++) {
        ranks_name(c->rounds.round, q, name, sizeof name);
        collective_call_off(dir, name);
    }
}

bool rounds_begin(struct controller *c, struct error *err)
{
    struct rounds *r = &c->rounds;
    char dir[4200], name[64];
    rounds_call_off(c);
    if (getrandom(&r->round, sizeof r->round, 0) != sizeof r->round)
        return error_errno(err, "cannot get a random number");
    r->round = (r->round & INT64_MAX) | 1;
    r->open = true;
    r->begun = r->saving = -1;
    snprintf(dir, sizeof dir, "%s/sock", c->process.run_dir);
    for (int q = 0; q < run_config_trainer_devices(&c->config); q++) {    // a meeting of each of their devices
        ranks_name(r->round, q, name, sizeof name);
        if (!collective_call(dir, name, err))
            return false;
    }
    return number_put(c, "round", r->round, err) && number_put(c, "begun", r->begun, err) && number_put(c, "saving", r->saving, err);
}

void rounds_seen(struct controller *c)
{
    c->rounds.open = false;
}

bool rounds_step_begin(struct controller *c, struct error *err)
{
    if (c->config.num_trainers == 1 || c->rounds.begun == c->step)
        return true;
    c->rounds.begun = c->step;
    return number_put(c, "begun", c->rounds.begun, err);
}

bool rounds_step_begun(const struct controller *c)
{
    return c->rounds.begun == c->step;
}

bool rounds_save_begin(struct controller *c, struct error *err)
{
    if (!run_config_saves_together(&c->config))
        return true;
    c->rounds.saving = c->step;
    return number_put(c, "saves", ++c->rounds.saves, err) && number_put(c, "saving", c->rounds.saving, err);
}

bool rounds_save_begun(const struct controller *c)
{
    return c->rounds.saving == c->step;
}

bool step_is_open(const struct controller *c)
{
    return workers_in_task(c, TASK_TRAIN) > 0 || rounds_step_begun(c);
}
