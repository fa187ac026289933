/* archive.h - all groups that a run has kept, read from its folder while the console is open: for looking back, searching and counting
 *
 * The journal says which items there are, what became of them and where their groups lie in rollouts/groups.zst; a group's record is
 * read when something of it is needed. Everything is done in slices (archive_pump), so that keys are answered meanwhile. A run whose
 * folder may not be read, or has nothing yet, has an empty archive. Owned by the console's loop thread; the panes read it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/run_view.h"
#include "protocol/record/journal.h"

#define ARCHIVE_GROUPS (1 << 18)     // most groups held; the oldest are forgotten
#define ARCHIVE_PROMPTS (1 << 18)    // most prompts counted
#define ARCHIVE_SIGNS 16

struct archive_group {
    int64_t item, row, version;
    int64_t step;             // optimizer step that trained on it; -1: none did
    int64_t offset, bytes;    // of its record; -1: it is not back yet
    enum item_fate fate;
    float mean;    // of its rewards; NAN: unknown
    /* what its record says, once it has been read: */
    bool read;
    int16_t n_sample, n_scored;
    float solved;                // samples with the right answer
    char sign[ARCHIVE_SIGNS];    // sample_sign of its first samples; 0: no more
    char match;                  // the filter: 0 not tried, 1 it passes, 2 not
};
struct archive_prompt {    // of the data, over all its groups
    int64_t row, line;     // line: -1 not known
    int64_t n_group;       // that are back
    int64_t n_sample, n_scored;
    double solved;         // samples with the right answer
    double first, last;    // pass rate of its first and its newest group; NAN: none is scored
    int64_t item;          // the newest
    int64_t n_filtered;    // groups that were left out of training
    bool quarantined;
};
struct archive;
/* The archive of the run in run_dir. NULL: no memory. */
struct archive *archive_new(const char *run_dir);
void archive_free(struct archive *a);    // NULL is fine
/* Go on for about budget_ns: look for news once per second, read what is shown, search, and read records for the counts: those of
 * the newest n_count groups. Raises m's version when there is something new to see. True: there is more to do at once. */
bool archive_pump(struct archive *a, struct run_view *m, int64_t n_count, int64_t budget_ns, int64_t now_ns);

/* Why it is empty; "": it is not, or nothing is wrong. */
const char *archive_why(const struct archive *a);
/* The groups that are back and pass the filter, newest first; without a filter also the items that are not back. */
int64_t archive_rows(const struct archive *a);
const struct archive_group *archive_row(const struct archive *a, int64_t row);
/* The row of the newest group that is back; archive_rows when there is none. */
int64_t archive_back(const struct archive *a);
/* The row of an item, or of the next older one; archive_rows when there is none. */
int64_t archive_find(const struct archive *a, int64_t item);
/* Show only what passes (rollout_filter.h). */
void archive_filter(struct archive *a, const char *words);
/* Show only what had been trained on after a step; INT64_MAX: everything. */
void archive_until(struct archive *a, int64_t step);
/* How far the filter has been tried: groups tried, of those that are back. */
void archive_tried(const struct archive *a, int64_t *tried, int64_t *all);
/* Have an item's group read; archive_shown returns it when it is there. -1: the newest that passes. */
void archive_want(struct archive *a, int64_t item);
const struct rollout_view *archive_shown(const struct archive *a);    // NULL: not read yet
/* The prompts that have groups, or are in quarantine, the hardest first; and how many groups their counts are still without. */
const struct archive_prompt *archive_prompts(const struct archive *a, int64_t *n, int64_t *uncounted);
