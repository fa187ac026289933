/* plain.h - a console of lines alone, for screen readers: questions and commands are typed, answers are printed
 *
 * Nothing is drawn, moved or overwritten. Used by watch.h, which prints the news. One thread. */
#pragma once
#include <stdio.h>
#include "console/fleet/feed.h"

#define PLAIN_LINE 1024    // bytes of a typed line, with its end

struct plain {
    struct feed *feed;         // borrowed
    struct run_view *model;    // borrowed
    FILE *out;
    char asked[PLAIN_LINE];    // a command that waits for yes or no; "": none
    int64_t answered;          // commands whose answers have been printed, by their time
    bool quit;
    char line[PLAIN_LINE];    // what has been read of the next line
    size_t len;               // its bytes, also those that have no room
};
/* Read what is waiting on fd and carry out its lines; one that is too long is refused. At the end of fd quit is set. */
void plain_read(struct plain *p, int fd, int64_t now_ns);
/* After news: print the answers to commands. */
void plain_answers(struct plain *p);
