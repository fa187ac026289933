/* hub_data.h - data sets of the hub: their names, and which of a repository's files are a configuration's split
 *
 * The rules are those of the datasets library: what the README's front matter says under `configs`, else how files and folders are
 * named ("Structure your repository" in the hub's documentation; data_files.py of datasets 5.2). Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

/* ORG/NAME[@REVISION][:CONFIG][:SPLIT], taken apart; "" for parts that are absent. One word after the name is a configuration when the
 * repository has one of that name, else a split. */
struct hub_data {
    char name[208], revision[208], config[128], split[128];
};
/* Is text such a name, and not that of a data file? Looks at no file. */
bool hub_data_parse(struct hub_data *h, const char *text);
/* The whole name again, with a revision in it, into out; false when it does not fit. */
bool hub_data_print(char *out, size_t size, const struct hub_data *h);

/* Files of a repository, by their paths in it. */
struct hub_names {
    char **name;     // (n)
    bool *wanted;    // (n) set by hub_data_select
    int n, cap;
};
/* Want every data file, of whatever split, and put the names in order. */
void hub_data_all(struct hub_names *names);
/* After one of both: is the file wanted? */
bool hub_names_wanted(const struct hub_names *names, const char *name);
MUST_USE bool hub_names_add(struct hub_names *names, const char *name, struct error *err);
void hub_names_release(struct hub_names *names);
/* Choose the data files that config and split mean ("": the default configuration; the split "train", or the only one), and put the
 * names in order. readme: the text of README.md, or nothing. shown names the data set in messages, which list the choices when
 * something does not exist. ERR_DATA: one of several files is missing. */
MUST_USE bool hub_data_select(struct hub_names *names, const char *readme, size_t readme_len, const char *config, const char *split,
                              const char *shown, struct error *err);
