/* level_view.h - how difficult a run's prompts are by now (curriculum_levels), as status says it
 *
 * Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct mval;
struct level_view {
    int64_t level, n_level;             // n_level 0: the run has no levels
    int64_t n_group, n_group_needed;    // of this level so far; that decide
    double share;                       // of right answers among them; NAN: none is known
    double harder, easier;              // shares that change the level; easier 0: it never becomes easier
};
void level_view_read(struct level_view *v, const struct mval *map);    // the map level of status; NULL: none
/* "level 2 of 0 to 4: 12 of 64 groups, 71 % right; harder from 80 %"; "": the run has no levels. Returns out. */
const char *level_view_say(const struct level_view *v, char *out, size_t size);
