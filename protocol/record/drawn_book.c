/* drawn_book.c - a word for each sample: 40 bits of its hash, and 24 of its version plus 1, so that an empty one is 0
 *
 * Words are read and written whole, by pread and pwrite: a mapping would end the process when a disk is full, or the file is cut. */
#include "protocol/record/drawn_book.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/mix64.h"

#define WORDS ((uint64_t)1 << 17)    // 1 MiB; the first is the version that was given
#define VERSION_BITS 24
#define VERSION_MAX (((int64_t)1 << VERSION_BITS) - 2)
#define ENDS 3    // where an answer may end: at the run of trained tokens' end, or before an end token and a line's end that templates add

struct drawn_book {
    int fd;
};

bool drawn_book_path_lent(const char *lent_file, char *out, size_t size)
{
    return snprintf(out, size, "%s.drawn", lent_file) < (int)size;
}

bool drawn_book_path(const struct run_config *c, const char *run_dir, char *out, size_t size)
{
    if (c->weight_bridge_file[0])
        return drawn_book_path_lent(c->weight_bridge_file, out, size);
    return snprintf(out, size, "%s/environments/drawn", run_dir) < (int)size;
}

bool drawn_book_path_given(const char *dir, char *out, size_t size)
{
    static const char place[] = "/engine/bridge/";
    char whole[PATH_MAX];
    if (!realpath(dir, whole))
        return false;
    const char *slash = strrchr(whole, '/'), *at = slash + 1 - (sizeof place - 1);
    return at > whole && strncmp(at, place, sizeof place - 1) == 0
           && snprintf(out, size, "%.*s/environments/drawn", (int)(at - whole), whole) < (int)size && path_exists(out);
}

struct drawn_book *drawn_book_open(const char *path, struct error *err)
{
    char dir[4200];
    const char *slash = strrchr(path, '/');
    struct drawn_book *b = calloc(1, sizeof *b);
    if (!b) {
        error_set(err, ERR_NO_MEMORY, "no memory for the book '%s'", path);
        return NULL;
    }
    b->fd = -1;
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if ((!dir[0] || dir_make(dir, 0755, err)) && (b->fd = file_create(path, O_RDWR, 0600, err)) >= 0)
        return b;
    drawn_book_close(b);
    return NULL;
}

void drawn_book_close(struct drawn_book *b)
{
    if (b && b->fd >= 0)
        close(b->fd);
    free(b);
}

/* ---- words */
static int64_t word_version(uint64_t word)
{
    return (int64_t)(word & (((uint64_t)1 << VERSION_BITS) - 1)) - 1;
}

static uint64_t word_of(uint64_t hash, int64_t version)
{
    return hash << VERSION_BITS | (uint64_t)(MIN(MAX(version, (int64_t)0), VERSION_MAX) + 1);
}

static uint64_t place_of(uint64_t hash)
{
    return 1 + (hash >> (64 - VERSION_BITS)) % (WORDS - 1);    // of the bits that the word does not hold
}

static void word_write(struct drawn_book *b, uint64_t place, uint64_t word)
{
    if (pwrite(b->fd, &word, sizeof word, (off_t)(place * sizeof word)) != (ssize_t)sizeof word)
        return;    // a full disk: what was there stays
}

static uint64_t word_read(const struct drawn_book *b, uint64_t place)
{
    uint64_t word = 0;
    return pread(b->fd, &word, sizeof word, (off_t)(place * sizeof word)) == (ssize_t)sizeof word ? word : 0;
}

static uint64_t hash_add(uint64_t h, int32_t id)
{
    return mix64((h ^ (uint32_t)id) + MIX64_STEP);
}

/* ---- samples */
void drawn_book_add(struct drawn_book *b, const int32_t *prompt, int64_t n_prompt, const int32_t *token, int64_t n_tok, int64_t version)
{
    uint64_t h = 0;
    if (!b || version < 0)
        return;
    for (int64_t i = 0; i < n_prompt; i++)
        h = hash_add(h, prompt[i]);
    for (int64_t i = 0; i < n_tok; i++) {
        h = hash_add(h, token[i]);
        if (i + 2 >= n_tok)
            word_write(b, place_of(h), word_of(h, version));
    }
}

void drawn_book_clear(struct drawn_book *b)
{
    if (b && ftruncate(b->fd, 0) != 0)
        return;    // it stays a hint
}

static int64_t sample_find(const struct drawn_book *b, const struct group *g, const struct sample *s)
{
    const int32_t *token = g->token + s->first_tok;
    const uint8_t *mask = g->mask + s->first_tok;
    uint64_t h = 0, last[ENDS] = { 0 };
    int64_t oldest = -1, n_run = 0;
    for (int64_t i = 0; i < g->n_prompt; i++)
        h = hash_add(h, g->prompt[i]);
    for (int64_t i = 0; i < s->n_tok; i++) {
        h = hash_add(h, token[i]);
        last[i % ENDS] = h;
        n_run = mask[i] ? n_run + 1 : 0;
        if (n_run == 0 || (i + 1 < s->n_tok && mask[i + 1]))
            continue;
        for (int64_t k = 0; k < MIN(n_run, (int64_t)ENDS); k++) {    // the longest first
            uint64_t hash = last[(i - k) % ENDS], word = word_read(b, place_of(hash));
            if (word == 0 || word != word_of(hash, word_version(word)))
                continue;
            oldest = oldest < 0 ? word_version(word) : MIN(oldest, word_version(word));
            break;
        }
    }
    return oldest;
}

int64_t drawn_book_find(const struct drawn_book *b, const struct group *g)
{
    int64_t oldest = -1;
    for (int32_t i = 0; b && i < g->n_sample; i++) {
        int64_t version = sample_find(b, g, &g->sample[i]);
        oldest = version < 0 ? oldest : oldest < 0 ? version : MIN(oldest, version);
    }
    return oldest;
}

/* ---- servers that are given weights */
void drawn_book_given_set(struct drawn_book *b, int64_t version)
{
    if (b)
        word_write(b, 0, version < 0 ? 0 : word_of(0, version));
}

int64_t drawn_book_given(const struct drawn_book *b)
{
    return b ? word_version(word_read(b, 0)) : -1;
}
