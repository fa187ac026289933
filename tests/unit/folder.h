/* folder.h - a folder of a test's own, made before it and removed with all in it: cmocka_unit_test_setup_teardown */
#pragma once
#include <stdlib.h>
#include "protocol/base/file.h"

struct folder {
    char path[64];
};
static int folder_make(void **state)
{
    struct folder *f = calloc(1, sizeof *f);
    snprintf(f->path, sizeof f->path, "/tmp/rc-test-XXXXXX");
    *state = f;
    return mkdtemp(f->path) ? 0 : -1;
}

static int folder_remove(void **state)
{
    struct error err;
    struct folder *f = *state;
    bool ok = dir_remove(f->path, &err);
    free(f);
    return ok ? 0 : -1;
}
