/* drawn_book.h - which weights drew a sample: kept by the servers of a run's weights, for when the sample is posted back
 *
 * Environments post what a server drew for them, mostly without the version of the weights that it answered. So a server notes for each
 * sample that it ends a hash of all its tokens, prompt and answer, and the version of the oldest weights that drew one; the run's
 * door for groups (environments_cmd.c) finds the same tokens again. The book is a file of fixed size in the run's folder, or beside the file by
 * which weights are lent: a table by hash in which a later sample takes the place of an earlier one. It is a hint: a sample that is not
 * found, as from a server on another machine, is dated otherwise. One thread for each open book; any number of processes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "protocol/settings/run_config.h"

struct drawn_book;

/* Where the book of a run is. False: the path is too long. */
bool drawn_book_path(const struct run_config *c, const char *run_dir, char *out, size_t size);
/* The book that servers of the weights lent by this file write. */
bool drawn_book_path_lent(const char *lent_file, char *out, size_t size);
/* The book of the run that has put weights into this folder for servers, RUN/engine/bridge/NAME. False: it is another folder, or has no book. */
bool drawn_book_path_given(const char *dir, char *out, size_t size);
/* Open the book, made when it is not there. NULL: see err. */
struct drawn_book *drawn_book_open(const char *path, struct error *err);
void drawn_book_close(struct drawn_book *b);    // NULL is fine

/* Note a sample of these weights. Environments may leave out its last token, an end token, so it is noted without that, too. A book that
 * cannot be written stays as it is. NULL is fine. */
void drawn_book_add(struct drawn_book *b, const int32_t *prompt, int64_t n_prompt, const int32_t *token, int64_t n_tok, int64_t version);
void drawn_book_clear(struct drawn_book *b);    // forget all of it; NULL is fine
/* The version of the oldest weights that drew an answer of this group; -1: none of its answers is in the book, or b is NULL. */
int64_t drawn_book_find(const struct drawn_book *b, const struct group *g);

/* Servers that keep no book have weights that the run gives them: note the version of the oldest that one has now. */
void drawn_book_given_set(struct drawn_book *b, int64_t version);
int64_t drawn_book_given(const struct drawn_book *b);    // -1: none was noted
