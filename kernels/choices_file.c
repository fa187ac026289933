/* choices_file.c - the text:
 *
 *   rollcall products 2
 *   for NVIDIA H200, 132 multiprocessors, 139 GiB; CUDA driver 13.0, cuBLASLt 13.1.0
 *   product 4608 3584 parts 0 bias 1 f32 0
 *   own 16
 *   library 66 20 36 1 0 0 0 0 2
 *   ... one line for each number of rows, CHOICE_BUCKETS in all, and then the next product
 *   end */
#include "kernels/choices_file.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"

#define FORMAT "rollcall products 2"
#define OWN_MAX 4096    // more outputs per block than any kernel of ours has

/* ---- writing ---- */
static bool is_kept(const struct choice *x)
{
    return (x->state == CHOICE_READ || x->state == CHOICE_PASSED) && !x->untimed;
}

void choices_write(const struct choices *c, struct buf *out)
{
    buf_fmt(out, FORMAT "\nfor %s\n", c->what);
    for (int i = 0; i < c->n; i++) {
        const struct choice *x = &c->at[i];
        if (!is_kept(x))
            continue;
        buf_fmt(out, "product %" PRId64 " %" PRId64 " parts %d bias %d f32 %d\n", x->kind.n_out, x->kind.n_in, x->kind.parts, x->kind.bias,
                x->kind.f32);
        for (int b = 0; b < CHOICE_BUCKETS; b++) {
            if (x->way[b].own > 0) {
                buf_fmt(out, "own %" PRId32 "\n", x->way[b].own);
                continue;
            }
            buf_str(out, "library");
            for (int k = 0; k < CHOICE_CONFIG_N; k++)
                buf_fmt(out, " %" PRId32, x->way[b].config[k]);
            buf_char(out, '\n');
        }
    }
    buf_str(out, "end\n");
}

/* ---- reading ---- */
struct lines {
    const char *at, *end;    // what has not been read
    const char *path;
    int n;
    char line[256];
};

static bool line_bad(const struct lines *l, const char *why, struct error *err)
{
    return error_set(err, ERR_DATA, "%s:%d: %s", l->path, l->n, why);
}

/* The next line, without its end, into l->line. */
static bool line_next(struct lines *l, struct error *err)
{
    l->n++;
    const char *nl = l->at < l->end ? memchr(l->at, '\n', (size_t)(l->end - l->at)) : NULL;
    if (!nl)
        return line_bad(l, "the file ends too early", err);
    size_t len = (size_t)(nl - l->at);
    if (len >= sizeof l->line || memchr(l->at, 0, len))
        return line_bad(l, "too long, or with a NUL byte", err);
    memcpy(l->line, l->at, len);
    l->line[len] = 0;
    l->at = nl + 1;
    return true;
}

/* The whole number from min to max at *s, which is moved past it and one space. */
static bool number_take(const char **s, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**s))
        return false;
    errno = 0;
    *out = strtoll(*s, &end, 10);
    if (errno || *out < min || *out > max || (*end && *end != ' '))
        return false;
    *s = end + (*end == ' ');
    return true;
}

static bool word_take(const char **s, const char *word)
{
    size_t len = strlen(word);
    if (strncmp(*s, word, len) != 0 || (*s)[len] != ' ')
        return false;
    *s += len + 1;
    return true;
}

static bool kind_read(const char *s, struct product_kind *k)
{
    int64_t parts, bias, f32;
    if (!word_take(&s, "product") || !number_take(&s, 1, INT32_MAX, &k->n_out) || !number_take(&s, 1, INT32_MAX, &k->n_in)
        || !word_take(&s, "parts") || !number_take(&s, 0, SUM_PARTS_MAX, &parts) || !word_take(&s, "bias") || !number_take(&s, 0, 1, &bias)
        || !word_take(&s, "f32") || !number_take(&s, 0, 1, &f32) || *s)
        return false;
    k->parts = (int)parts;
    k->bias = bias;
    k->f32 = f32;
    return true;
}

static bool way_read(const char *s, struct choice_way *w)
{
    int64_t v;
    *w = (struct choice_way){ 0 };
    if (word_take(&s, "own")) {
        bool ok = number_take(&s, 1, OWN_MAX, &v) && !*s;
        w->own = ok ? (int32_t)v : 0;
        return ok;
    }
    if (!word_take(&s, "library"))
        return false;
    for (int k = 0; k < CHOICE_CONFIG_N; k++) {
        if (!number_take(&s, 0, INT32_MAX, &v))
            return false;
        w->config[k] = (int32_t)v;
    }
    return !*s;
}

/* All entries of the text into c, which is empty. */
static bool entries_read(struct choices *c, struct lines *l, struct error *err)
{
    if (!line_next(l, err))
        return false;
    if (strcmp(l->line, FORMAT) != 0)
        return line_bad(l, "not '" FORMAT "'", err);
    if (!line_next(l, err))
        return false;
    if (strncmp(l->line, "for ", 4) != 0 || strcmp(l->line + 4, c->what) != 0)
        return line_bad(l, "for another card, or for other versions of its libraries", err);
    for (;;) {
        struct product_kind kind;
        struct choice *x;
        if (!line_next(l, err))
            return false;
        if (strcmp(l->line, "end") == 0)
            return l->at == l->end || line_bad(l, "more after the end", err);
        if (!kind_read(l->line, &kind))
            return line_bad(l, "not 'product OUT IN parts N bias N f32 N' in range", err);
        if (c->n == CHOICES_MAX || choices_find(c, &kind))
            return line_bad(l, "too many products, or one twice", err);
        x = choices_take(c, &kind);
        x->state = CHOICE_READ;
        x->from_disk = true;
        for (int b = 0; b < CHOICE_BUCKETS; b++) {
            if (!line_next(l, err))
                return false;
            if (!way_read(l->line, &x->way[b]))
                return line_bad(l, "not 'own N' or 'library' and its numbers", err);
        }
    }
}

bool choices_parse(struct choices *c, const char *text, size_t len, const char *path, struct error *err)
{
    struct lines l = { .at = text, .end = text + len, .path = path };
    struct choices *read = calloc(1, sizeof *read);
    if (!read)
        return error_set(err, ERR_NO_MEMORY, "no memory for the choices of algorithms");
    snprintf(read->what, sizeof read->what, "%s", c->what);
    bool ok = entries_read(read, &l, err);
    for (int i = 0; ok && i < read->n && c->n < CHOICES_MAX; i++)
        if (!choices_find(c, &read->at[i].kind))
            *choices_take(c, &read->at[i].kind) = read->at[i];
    free(read);
    return ok;
}

/* ---- the file ---- */
bool choices_path(const char *what, char *out, size_t size)
{
    const char *set = getenv("RC_CUDA_CHOICES");
    if ((set && strcmp(set, "off") == 0) || !cache_path(out, size, "rollcall/products-"))
        return false;
    size_t len = strlen(out);
    for (const char *s = what; *s && len + sizeof ".txt" < size; s++) {
        char c = isalnum((unsigned char)*s) ? (char)tolower((unsigned char)*s) : '-';
        if (c != '-' || out[len - 1] != '-')
            out[len++] = c;
    }
    return len + sizeof ".txt" < size && snprintf(out + len, size - len, ".txt") > 0;
}

/* Add the entries of the file, if there is one. */
static bool file_take(struct choices *c, const char *path, struct error *err)
{
    struct buf text = BUF_INIT;
    bool ok = !path_exists(path)
              || (file_read(&text, path, CHOICES_FILE_MAX, err) && choices_parse(c, buf_text(&text), text.len, path, err));
    buf_release(&text);
    return ok;
}

/* Say that a file does not suit. A broken one is removed, and whoever removes it says so: several devices of a process open it one after
 * the other, and several processes at the same time. */
static void file_tell(const char *path, const struct error *why)
{
    if (why->code == ERR_DATA && unlink(path) == 0)
        log_warn("choices of algorithms on disk are removed, and will be written again: %s", why->text);
    else if (why->code != ERR_DATA || errno != ENOENT)
        log_warn("choices of algorithms on disk are not used: %s", why->text);
}

struct choices *choices_open(const char *what, struct error *err)
{
    char path[PATH_MAX];
    struct error why;
    struct choices *c = calloc(1, sizeof *c);
    if (!c) {
        error_set(err, ERR_NO_MEMORY, "no memory for the choices of algorithms");
        return NULL;
    }
    snprintf(c->what, sizeof c->what, "%s", what);
    if (choices_path(what, path, sizeof path) && !file_take(c, path, &why))
        file_tell(path, &why);
    return c;
}

void choices_save(struct choices *c)
{
    char path[PATH_MAX], dir[PATH_MAX];
    struct buf text = BUF_INIT;
    struct error err;
    if (!c->changed || !choices_path(c->what, path, sizeof path))
        return;
    c->changed = false;
    (void)!file_take(c, path, &err);    // one that does not suit is written over
    choices_write(c, &text);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    bool ok = text.failed ? error_set(&err, ERR_NO_MEMORY, "no memory for the text of '%s'", path)
                          : dir_make(dir, 0777, &err) && file_write(path, text.data, text.len, &err);
    if (!ok)
        log_warn("choices of algorithms are not kept for the next start: %s", err.text);
    buf_release(&text);
}

void choices_tell(struct choices *c, const char *device)
{
    char text[1024];
    for (int i = 0; i < c->n; i++) {
        struct choice *x = &c->at[i];
        if (x->state == CHOICE_READ || x->told)
            continue;
        x->told = true;
        choice_text(x, text, sizeof text);
        if (x->state == CHOICE_PLAIN)
            log_warn("%s: %s", device, text);
        else
            log_info("%s: %s", device, text);
    }
}
