/* plain.h - a console of lines alone, for screen readers: questions and commands are typed, answers are printed
 *
 * Nothing is drawn, moved or overwritten. Used by watch.h, which prints the news. One thread. */
#pragma once
#include <stdio.h>
#include "console/fleet/feed.h"

struct plain {
    struct feed *feed;      // borrowed
    struct model *model;    // borrowed
    FILE *out;
    char asked[256];     // a command that waits for yes or no; "": none
    int64_t answered;    // commands whose answers have been printed, by their time
    bool quit;
    char line[1024];    // what has been read of the next line
    size_t len;
};
/* Read what is waiting on fd and carry out its lines; at its end quit is set. */
void plain_read(struct plain *p, int fd, int64_t now_ns);
/* Carry out one line, without its end. */
void plain_line(struct plain *p, const char *line, int64_t now_ns);
/* After news: print the answers to commands. */
void plain_answers(struct plain *p);
