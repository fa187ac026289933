/* wandb_who.h - under which names a run is at Weights & Biases, and with whose key
 *
 * Each value comes from the run's settings if it was given there, else the environment (WANDB_*), else wandb's settings files
 * (wandb_files.h). What wandb's own client would refuse is refused here, before anything is sent; nothing is cut or replaced. The start
 * of a run and its exporter ask the same functions. Plain values; any thread. */
#pragma once
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

#define WANDB_PROJECT_MAX 128    // characters
#define WANDB_VALUE_MAX 1025     // bytes of the longest value
struct wandb_who {
    char base_url[1024];    // without a trailing slash
    char key[512];          // of wandb_key_find; never printed, logged or put on a command line. Wiped by the caller that had it found
    char entity[128], project[4 * WANDB_PROJECT_MAX + 1], display_name[129], group[129], job_type[129];
    char run_id[65];    // WANDB_RUN_ID; "": none is given
    char tags[256], notes[WANDB_VALUE_MAX - 1];
    char resume[16];    // WANDB_RESUME: allow, must, never, auto; "": allow
};
/* All but the key. ERR_USAGE names what gave a value that wandb does not take, or that is too long. */
MUST_USE bool wandb_who_make(struct wandb_who *w, const struct run_config *c, struct error *err);
/* The key for w->base_url: WANDB_API_KEY, else netrc. ERR_USAGE: there is none. */
MUST_USE bool wandb_key_find(struct wandb_who *w, struct error *err);
/* What the exporter of a run with these settings would find wrong at its start. need_key: the exporter runs here, so a missing key is
 * wrong, too. */
MUST_USE bool wandb_who_check(const struct run_config *c, bool need_key, struct error *err);
