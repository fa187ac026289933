/* choose_ahead.h - choosing algorithms for a model's products while its weights are read
 *
 * Both take seconds, one the GPU's and the other the host's. A device is driven by one thread, so the choosing thread opens the device a second
 * time and closes it when it is done; what it chose comes into the first one's table like what is read from disk, and is tried there
 * in the same way before it is used. */
#pragma once

struct choose_ahead;
struct model;
/* Begin with the kinds that the table of m's device lacks. NULL: there are none, or no thread for it: they are chosen when the handles are
 * made. m is borrowed until the end. */
struct choose_ahead *choose_ahead_begin(const struct model *m);
void choose_ahead_end(struct choose_ahead *c);    // waits, and frees; NULL is fine
