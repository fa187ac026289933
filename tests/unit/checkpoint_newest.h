/* checkpoint_newest.h - the newest whole checkpoint of a test's folder */
#pragma once
#include <stdio.h>
#include "workers/engine/trainer/checkpoint.h"

/* The newest of dir's checkpoints that checkpoint_verify finds whole, into path; tests make far fewer than 100 steps. */
static inline bool checkpoint_newest(const char *dir, char path[4096], int64_t *step, struct error *err)
{
    for (int i = 100; i >= 0; i--) {
        struct error why = { 0 };
        snprintf(path, 4096, "%s/step-%06d", dir, i);
        if (checkpoint_verify(path, step, &why))
            return true;
    }
    return error_set(err, ERR_NOT_FOUND, "'%s' holds no whole checkpoint", dir);
}
