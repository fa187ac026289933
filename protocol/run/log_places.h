/* log_places.h - the log files of a run, and how far each has been read
 *
 * Bounded: at most LOG_PLACES files; of one that is met first, its last 16 KiB. Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#define LOG_PLACES 64
struct log_place {
    char name[64];    // of the file, "worker-cpu-0.log"
    int64_t at;       // read so far; -1: nothing yet
};
/* Could this be the name of a log file in its folder? */
bool log_name_is_fine(const char *name);
/* The place of a file, added if there is room (NULL: none). */
struct log_place *log_place_of(struct log_place place[LOG_PLACES], int *n, const char *name);
/* Add the files of a folder that are not known yet. */
void log_places_look(const char *dir, struct log_place place[LOG_PLACES], int *n);
/* Read whole new lines of a file, at most room bytes: returns how many. *skipped: bytes left out before them. */
size_t log_place_read(const char *dir, struct log_place *p, char *text, size_t room, int64_t *skipped);
