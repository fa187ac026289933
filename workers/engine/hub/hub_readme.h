/* hub_readme.h - the configurations that a data set's README declares
 *
 * Private to this folder. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

struct readme_file {
    char *split, *pattern;
};
struct readme_config {
    char *name, *data_dir;    // data_dir "" when none
    bool is_default;
    struct readme_file *file;    // (n_file)
    int n_file;
};
struct readme {
    struct readme_config *config;    // (n_config); none: the README declares nothing
    int n_config;
};
/* Read `configs` in the YAML between the first two lines "---". r is zeroed; it holds what readme_release frees, also on failure.
 * ERR_DATA: it is not YAML, or not of the form. */
MUST_USE bool readme_read(struct readme *r, const char *text, size_t len, const char *shown, struct error *err);
void readme_release(struct readme *r);
