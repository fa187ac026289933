#include "console/fleet/archive.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/rollout_filter.h"
#include "protocol/base/clock.h"
#include "protocol/record/prompt_lines.h"
#include "protocol/record/rollout_file.h"
#include "protocol/wire/message.h"

#define POLL_NS ((int64_t)1000000000)
#define ITEMS_AT_ONCE 4000    // read from the journal in one go

struct archive {
    char run_dir[4096], path[4224];
    struct journal *journal;    // NULL: not open
    char why[256];
    int64_t polled_ns;
    int64_t incarnation;
    int64_t from;         // first item that may have changed
    int64_t next;         // the next to read; -1: this look is over
    int64_t unsettled;    // the first of this look whose fate may change; -1: none so far
    struct buf lines;     // prompt_lines.h
    /* groups in order of items */
    struct archive_group *group;    // (cap)
    int64_t n, cap;
    int64_t uncounted_from;    // groups from here down to 0 may lack their counts
    /* the filter, and what passes it: indices of groups, newest first */
    char words[256];
    struct rollout_filter filter;
    int64_t untried;    // groups above it have been tried; it goes down
    int64_t *row;       // (n_row)
    int64_t n_row, row_cap;
    bool rows_stale;
    int64_t until;    // last step whose groups are shown
    int64_t want;     // item; -1: the newest; -2: none
    struct rollout_view shown;
    bool has_shown;
    int64_t shown_offset;
    struct rollout_view scratch;      // of the search and the counts
    struct archive_prompt *prompt;    // (n_prompt) by place of their rows among those that are known
    int64_t n_prompt, prompt_cap, uncounted;
    int64_t *place;    // (n_place) of a row in prompt; -1: none
    int64_t n_place;
    bool prompts_stale;
    int64_t prompts_ns;    // when they were made
    struct buf quarantine;
};

struct archive *archive_new(const char *run_dir)
{
    struct archive *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    snprintf(a->run_dir, sizeof a->run_dir, "%s", run_dir);
    a->want = -2;
    a->until = INT64_MAX;
    a->next = -1;
    a->incarnation = -1;
    a->shown_offset = -1;
    rollout_filter_parse(&a->filter, "");
    return a;
}

void archive_free(struct archive *a)
{
    if (!a)
        return;
    journal_close(a->journal);
    buf_release(&a->lines);
    buf_release(&a->quarantine);
    rollout_view_release(&a->shown);
    rollout_view_release(&a->scratch);
    free(a->group);
    free(a->row);
    free(a->prompt);
    free(a->place);
    free(a);
}

/* ---- the index, from the journal ---- */

/* The first group with an item that is not below. */
static int64_t group_from(const struct archive *a, int64_t item)
{
    int64_t lo = 0, hi = a->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (a->group[mid].item < item)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Room for one more group; when all places are taken, the older half is forgotten. */
static bool group_room(struct archive *a)
{
    if (a->n < a->cap)
        return true;
    if (a->cap == ARCHIVE_GROUPS) {
        int64_t gone = a->n / 2;
        memmove(a->group, a->group + gone, (size_t)(a->n - gone) * sizeof *a->group);
        a->n -= gone;
        a->rows_stale = a->prompts_stale = true;    // both have places in group
        a->untried = MAX(a->untried - gone, (int64_t)0);
        a->uncounted_from = MAX(a->uncounted_from - gone, (int64_t)0);
        return true;
    }
    int64_t cap = MIN(MAX(2 * a->cap, (int64_t)1024), (int64_t)ARCHIVE_GROUPS);
    struct archive_group *grown = realloc(a->group, (size_t)cap * sizeof *grown);
    if (!grown)
        return false;
    a->group = grown;
    a->cap = cap;
    return true;
}

struct items_slice {
    struct archive *a;
    int64_t n;
    bool changed;
};

static bool item_take(void *arg, const struct journal_item *i)
{
    struct items_slice *s = arg;
    struct archive *a = s->a;
    int64_t at = group_from(a, i->item);
    if (s->n++ == ITEMS_AT_ONCE)
        return false;
    a->next = i->item + 1;
    if (a->unsettled < 0 && i->fate != ITEM_TRAINED && i->fate != ITEM_FILTERED && i->fate != ITEM_STALE && i->fate != ITEM_STOPPED)
        a->unsettled = i->item;
    if (at == a->n || a->group[at].item != i->item) {
        if (at < a->n || !group_room(a))    // the journal has items in order; older ones do not come later
            return true;
        at = a->n++;
        a->group[at] = (struct archive_group){ .item = i->item, .offset = -1 };
    }
    struct archive_group *g = &a->group[at];
    bool record = g->offset != i->file_offset;
    s->changed |= record || g->fate != i->fate;
    g->row = i->prompt_row;
    g->version = i->weight_version;
    g->fate = i->fate;
    g->step = i->fate == ITEM_TRAINED ? i->step : -1;
    g->mean = (float)i->reward_mean;
    if (!record)
        return true;
    g->offset = i->file_offset;
    g->bytes = i->file_bytes;
    g->read = false;
    g->match = 0;
    a->untried = MAX(a->untried, at + 1);
    a->uncounted_from = MAX(a->uncounted_from, at + 1);
    return true;
}

/* The run has gone back to a checkpoint: items may be sampled again, so all of the index is read again. */
static void index_forget(struct archive *a)
{
    a->n = a->from = a->untried = a->uncounted_from = 0;
    a->next = -1;
    a->shown_offset = -1;
    a->rows_stale = a->prompts_stale = true;
}

static bool look_begin(struct archive *a, struct run_view *m, struct error *err)
{
    bool found;
    if (!a->journal && !(a->journal = journal_open_reader(a->run_dir, err)))
        return false;
    if (!view_groups_path(m, a->run_dir, a->path, sizeof a->path))
        return error_set(err, ERR_USAGE, "the path of the run's groups is too long");
    if (a->incarnation != m->incarnation)
        index_forget(a);
    a->incarnation = m->incarnation;
    a->next = a->from;
    a->unsettled = -1;
    if (a->lines.len == 0 && !journal_value_get(a->journal, "lines", &a->lines, &found, err))
        return false;
    struct buf now = BUF_INIT;
    bool ok = journal_value_get(a->journal, "quarantine", &now, &found, err);
    if (ok && strcmp(buf_text(&now), buf_text(&a->quarantine)) != 0) {
        struct buf before = a->quarantine;
        a->quarantine = now;
        now = before;
        a->prompts_stale = true;
    }
    buf_release(&now);
    return ok;
}

/* One slice of a look into the journal. Returns whether something is new. */
static bool look(struct archive *a, struct run_view *m, int64_t now_ns)
{
    struct error err;
    struct items_slice s = { .a = a };
    if (a->next < 0 && a->polled_ns && now_ns - a->polled_ns < POLL_NS)
        return false;
    bool ok = a->next >= 0 || look_begin(a, m, &err);
    a->polled_ns = now_ns;
    if (!ok || !journal_items_read(a->journal, a->next, item_take, &s, &err)) {
        bool told = strcmp(a->why, err.text) == 0;
        snprintf(a->why, sizeof a->why, "%.255s", err.text);
        a->next = -1;
        return !told;
    }
    a->why[0] = 0;
    if (s.n <= ITEMS_AT_ONCE) {    // that was the end of this look
        a->from = a->unsettled >= 0 ? a->unsettled : MAX(a->next, a->from);
        a->next = -1;
    }
    a->rows_stale |= s.changed;
    a->prompts_stale |= s.changed;
    return s.changed;
}

/* ---- records ---- */

static bool record_read(struct archive *a, const struct run_view *m, const struct archive_group *g, struct rollout_view *out)
{
    struct error unread;
    if (g->offset < 0 || !rollout_view_load(out, a->path, g->offset, g->bytes, view_advantages(m), &unread)) {
        rollout_view_release(out);
        return false;
    }
    out->step = g->step;
    out->line = prompt_line(&a->lines, g->row);
    return true;
}

static void group_count(struct archive_group *g, const struct rollout_view *v)
{
    g->read = true;
    g->n_sample = (int16_t)v->n_sample;
    g->n_scored = 0;
    g->solved = 0;
    memset(g->sign, 0, sizeof g->sign);
    for (int i = 0; i < v->n_sample; i++) {
        const struct sample_view *s = &v->sample[i];
        bool scored = !isnan(s->reward);
        g->n_scored += scored;
        g->solved += scored && !isnan(s->ans_acc) ? (float)s->ans_acc : 0;
        if (i < ARCHIVE_SIGNS)
            g->sign[i] = sample_sign(s);
    }
}

static void group_try(struct archive *a, const struct run_view *m, struct archive_group *g)
{
    bool ok = record_read(a, m, g, &a->scratch);
    if (ok)
        group_count(g, &a->scratch);
    g->match = ok && rollout_filter_passes(&a->filter, &a->scratch) ? 1 : 2;
    a->rows_stale |= g->match == 1;
    a->prompts_stale = true;
}

/* The next group of the search; false: all have been tried. */
static bool search(struct archive *a, const struct run_view *m)
{
    while (a->words[0] && a->untried > 0) {
        struct archive_group *g = &a->group[--a->untried];
        if (g->offset < 0 || g->match)
            continue;
        group_try(a, m, g);
        return true;
    }
    return false;
}

/* The next group without counts among the newest n_count; false: all have theirs. */
static bool count(struct archive *a, const struct run_view *m, int64_t n_count)
{
    while (a->uncounted_from > MAX(a->n - n_count, (int64_t)0)) {
        struct archive_group *g = &a->group[--a->uncounted_from];
        if (g->offset < 0 || g->read)
            continue;
        if (record_read(a, m, g, &a->scratch))
            group_count(g, &a->scratch);
        g->read = true;    // a damaged one is not tried again
        a->prompts_stale = true;
        return true;
    }
    return false;
}

/* ---- what the panes see ---- */

/* Is it there after the step `until`, and does it pass the filter? */
static bool group_shown(const struct archive *a, const struct archive_group *g)
{
    bool then = a->until == INT64_MAX || (g->step >= 0 && g->step <= a->until);
    if (g->offset < 0)    // nothing of it can be searched
        return g->fate == ITEM_ISSUED && a->until == INT64_MAX && !a->words[0];
    return then && (!a->words[0] || g->match == 1);
}

static void rows_make(struct archive *a)
{
    a->rows_stale = false;
    if (a->n > a->row_cap) {
        int64_t *grown = realloc(a->row, (size_t)a->cap * sizeof *grown);
        if (!grown)
            return;
        a->row = grown;
        a->row_cap = a->cap;
    }
    a->n_row = 0;
    for (int64_t i = a->n - 1; i >= 0; i--)
        if (group_shown(a, &a->group[i]))
            a->row[a->n_row++] = i;
}

/* The prompt of a row of the data; NULL: there are too many, or there is no memory. */
static struct archive_prompt *prompt_of(struct archive *a, int64_t row)
{
    if (row < 0 || row >= (int64_t)ARCHIVE_PROMPTS * 64)
        return NULL;
    if (row >= a->n_place) {
        int64_t n = MAX(row + 1, 2 * a->n_place);
        int64_t *grown = realloc(a->place, (size_t)n * sizeof *grown);
        if (!grown)
            return NULL;
        memset(grown + a->n_place, 0xff, (size_t)(n - a->n_place) * sizeof *grown);
        a->place = grown;
        a->n_place = n;
    }
    if (a->place[row] >= 0)
        return &a->prompt[a->place[row]];
    if (a->n_prompt == a->prompt_cap) {
        int64_t cap = MIN(MAX(2 * a->prompt_cap, (int64_t)256), (int64_t)ARCHIVE_PROMPTS);
        struct archive_prompt *grown = cap > a->n_prompt ? realloc(a->prompt, (size_t)cap * sizeof *grown) : NULL;
        if (!grown)
            return NULL;
        a->prompt = grown;
        a->prompt_cap = cap;
    }
    a->place[row] = a->n_prompt;
    a->prompt[a->n_prompt] = (struct archive_prompt){
        .row = row, .line = prompt_line(&a->lines, row), .first = NAN, .last = NAN, .item = -1
    };
    return &a->prompt[a->n_prompt++];
}

/* Hardest first, without a score last. */
static int prompt_compare(const void *left, const void *right)
{
    const struct archive_prompt *a = left, *b = right;
    double x = a->n_scored ? a->solved / (double)a->n_scored : 2, y = b->n_scored ? b->solved / (double)b->n_scored : 2;
    return x != y ? (x > y) - (x < y) : (a->row > b->row) - (a->row < b->row);
}

static void prompts_make(struct archive *a)
{
    a->prompts_stale = false;
    a->n_prompt = a->uncounted = 0;
    if (a->n_place)
        memset(a->place, 0xff, (size_t)a->n_place * sizeof *a->place);
    for (int64_t i = 0; i < a->n; i++) {
        const struct archive_group *g = &a->group[i];
        struct archive_prompt *p = g->offset >= 0 ? prompt_of(a, g->row) : NULL;
        if (!p)
            continue;
        p->n_group++;
        p->item = g->item;
        p->n_filtered += g->fate == ITEM_FILTERED;
        if (!g->read) {
            a->uncounted++;
            continue;
        }
        p->n_sample += g->n_sample;
        p->n_scored += g->n_scored;
        p->solved += (double)g->solved;
        if (g->n_scored > 0) {
            p->last = (double)g->solved / g->n_scored;
            p->first = isnan(p->first) ? p->last : p->first;
        }
    }
    for (const char *at = buf_text(&a->quarantine); *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        struct archive_prompt *p = prompt_of(a, strtoll(at, NULL, 10));
        if (p)
            p->quarantined = true;
    }
    if (a->n_prompt)
        qsort(a->prompt, (size_t)a->n_prompt, sizeof *a->prompt, prompt_compare);
}

/* Read what is wanted, when it is another group or another record of it. Returns whether there is something new to see. */
static bool wanted_read(struct archive *a, const struct run_view *m)
{
    if (a->want == -2 || a->n_row == 0)
        return false;
    int64_t newest = archive_row(a, archive_back(a)) ? archive_row(a, archive_back(a))->item : -1;
    int64_t item = a->want >= 0 ? a->want : newest, at = group_from(a, item);
    const struct archive_group *g = at < a->n && a->group[at].item == item ? &a->group[at] : NULL;
    if (g && g->offset < 0)
        return false;
    if (!g || g->offset == a->shown_offset) {
        if (g && a->has_shown)
            a->shown.step = g->step;    // it has been trained on meanwhile
        return false;
    }
    a->shown_offset = g->offset;
    a->has_shown = record_read(a, m, g, &a->shown);
    return true;
}

bool archive_pump(struct archive *a, struct run_view *m, int64_t n_count, int64_t budget_ns, int64_t now_ns)
{
    int64_t begin = clock_ns();
    bool more;
    bool news = look(a, m, now_ns);
    if (a->rows_stale)
        rows_make(a);
    news |= wanted_read(a, m);
    do    // at least one record, so that there is progress however little time is left
        more = search(a, m) || count(a, m, n_count);
    while (more && clock_ns() - begin < budget_ns);
    more = more || a->next >= 0;
    news |= a->rows_stale || a->prompts_stale;
    if (a->rows_stale)
        rows_make(a);
    if (a->prompts_stale && n_count >= a->n && (!more || now_ns - a->prompts_ns >= POLL_NS / 2)) {
        prompts_make(a);
        a->prompts_ns = now_ns;
    }
    if (news)
        view_changed(m);
    return more || news;    // what is new may change what the panes want
}

const char *archive_why(const struct archive *a)
{
    return a->why;
}

int64_t archive_rows(const struct archive *a)
{
    return a->n_row;
}

const struct archive_group *archive_row(const struct archive *a, int64_t row)
{
    return row >= 0 && row < a->n_row ? &a->group[a->row[row]] : NULL;
}

int64_t archive_back(const struct archive *a)
{
    int64_t row = 0;
    while (row < a->n_row && a->group[a->row[row]].offset < 0)
        row++;
    return row;
}

int64_t archive_find(const struct archive *a, int64_t item)
{
    int64_t lo = 0, hi = a->n_row;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (a->group[a->row[mid]].item > item)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void archive_filter(struct archive *a, const char *words)
{
    if (strcmp(words, a->words) == 0)
        return;
    snprintf(a->words, sizeof a->words, "%s", words);
    rollout_filter_parse(&a->filter, words);
    for (int64_t i = 0; i < a->n; i++)
        a->group[i].match = 0;
    a->untried = a->n;
    a->rows_stale = true;
}

void archive_until(struct archive *a, int64_t step)
{
    a->until = step;
    a->rows_stale = true;
}

void archive_tried(const struct archive *a, int64_t *tried, int64_t *all)
{
    *tried = *all = 0;
    for (int64_t i = 0; i < a->n; i++) {
        *all += a->group[i].offset >= 0;
        *tried += a->group[i].offset >= 0 && (!a->words[0] || a->group[i].match);
    }
}

void archive_want(struct archive *a, int64_t item)
{
    a->want = item;
}

const struct rollout_view *archive_shown(const struct archive *a)
{
    return a->has_shown ? &a->shown : NULL;
}

const struct archive_prompt *archive_prompts(const struct archive *a, int64_t *n, int64_t *uncounted)
{
    *n = a->n_prompt;
    *uncounted = a->uncounted;
    return a->prompt;
}
