/* files.h - which files a data set's name refers to
 *
 * A file; a folder, for the data files in it and below; a pattern (*, ?, [...]); or ORG/NAME[@REVISION][:CONFIG][:SPLIT] for what the
 * hub's cache holds. Folders and data sets of the hub never give the rows of two splits at once. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

struct data_files {
    char **path;    // (n) in the order of their rows
    int n;
};
/* Find them; f holds nothing on failure. ERR_NOT_FOUND says what to do. */
MUST_USE bool data_files_find(struct data_files *f, const char *name, struct error *err);
/* For a data set in the hub's cache, put the commit into its name (size bytes), so that it gives the same rows whatever is pulled
 * later. Other names are unchanged. */
MUST_USE bool data_name_pin(char *name, size_t size, struct error *err);
void data_files_release(struct data_files *f);
