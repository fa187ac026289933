/* Tables of rollouts for wandb: the journal's items show which are due, and their text is read from the rollout file. Each is a new
 * table, never a growing one: sending that repeatedly would cost the square of the run's length. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/digest.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/utf8.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/rollout_file.h"
#include "protocol/wire/message.h"
#include "workers/export/wandb.h"

#define TABLE_ITEMS 32           // prompts per table
#define TABLE_SAMPLES 4          // samples of each prompt
#define TABLE_TEXT_BYTES 4096    // bytes of a prompt and of a completion

static const char columns[] =
    "{\"columns\":[\"step\",\"item\",\"sample\",\"prompt\",\"completion\",\"reward\",\"ans_acc\",\"format_acc\",\"tokens\",\"finish\","
    "\"reason\"],\"data\":[";
enum {
    N_COLUMNS = 11,
};

struct search {
    int64_t interval, last_version;
    bool any, over;    // any: a rollout step is being considered
    int64_t rollout_step, version;
    int64_t next_item;     // the first item not yet decided
    int64_t boundary;      // the first item of the rollout step after the one being considered, -1: not seen
    int64_t last_item;     // the last item seen
    bool due, complete;    // in the rollout step being considered
    int n;
    struct {
        int64_t offset, bytes;
    } place[TABLE_ITEMS];
};

static bool item_look(void *arg, const struct journal_item *i)
{
    struct search *s = arg;
    s->last_item = i->item;
    if (s->any && i->rollout_step != s->rollout_step) {
        s->boundary = s->boundary < 0 ? i->item : s->boundary;
        if (i->file_offset < 0)
            return true;    // issued ahead, but not returned yet
        s->next_item = s->boundary;
        s->boundary = -1;
        if (s->due && s->n > 0) {
            s->complete = true;
            return false;
        }
        s->any = false;
    }
    if (!s->any) {
        s->any = true;
        s->rollout_step = i->rollout_step;
        s->version = i->weight_version;
        s->due = s->last_version < 0 || i->weight_version >= s->last_version + s->interval;
        s->n = 0;
    }
    if (s->due && i->file_offset >= 0 && s->n < TABLE_ITEMS) {
        s->place[s->n].offset = i->file_offset;
        s->place[s->n++].bytes = i->file_bytes;
    }
    return true;
}

/* Text cut to the limit, between characters. */
static void text_add(struct buf *out, const struct mval *v)
{
    size_t len = 0;
    const char *text = mval_str(v, &len);
    size_t keep = text ? utf8_cut(text, len, TABLE_TEXT_BYTES) : 0;
    if (keep < len) {
        char cut[TABLE_TEXT_BYTES + 4];
        int n = snprintf(cut, sizeof cut, "%.*s", (int)keep, text);
        memcpy(cut + n, "\xe2\x80\xa6", 3);    // …
        json_text_print(out, cut, (size_t)n + 3, JSON_TEXT_UTF8);
    } else {
        json_text_print(out, text ? text : "", keep, JSON_TEXT_UTF8);
    }
}

/* Plain JSON has no NaN: null. */
static void number_add(struct buf *out, double v)
{
    if (isfinite(v))
        json_number_print(out, v);
    else
        buf_str(out, "null");
}

static void rows_add(struct wandb_table *t, const struct mval *map, const struct group *g)
{
    struct buf *b = &t->json;
    for (int32_t i = 0; i < MIN(g->n_sample, TABLE_SAMPLES); i++) {
        const struct sample *s = &g->sample[i];
        double scored = s->score == SCORE_OK ? 0 : NAN;    // NAN: unknown
        buf_fmt(b, "%s[%" PRId64 ",%" PRId64 ",%d,", t->n_row++ ? "," : "", g->weight_version, g->item, (int)i);
        text_add(b, mval_get(map, "prompt_text"));
        buf_char(b, ',');
        text_add(b, mval_get(mval_at(mval_get(map, "samples"), i), "text"));
        const double value[] = { s->reward, (double)s->ans_acc, (double)s->format_acc };
        for (size_t k = 0; k < ARRAY_SIZE(value); k++) {
            buf_char(b, ',');
            number_add(b, value[k] + scored);
        }
        buf_fmt(b, ",%" PRId64 ",\"%s\",", s->n_tok, s->finish == FINISH_STOP ? "stop" : "length");
        json_text_print(b, s->reason, strlen(s->reason), JSON_TEXT_UTF8);
        buf_char(b, ']');
    }
}

static bool record_add(struct wandb_table *t, const char *path, int64_t offset, int64_t bytes, struct buf *record, struct error *err)
{
    struct msg_in in = { 0 };
    buf_clear(record);
    if (!rollout_file_read(path, offset, bytes, record, err) || !msg_read_request(&in, record->data, record->len, err))
        return false;
    struct group *g = in.type == MSG_GROUP ? group_read(in.root, err) : NULL;
    if (g)
        rows_add(t, in.root, g);
    group_free(g);
    msg_in_release(&in);
    return g != NULL;
}

bool wandb_table_next(struct wandb_table *t, const struct wandb_setup *s, struct journal *j, bool over, struct wandb_cursor *c,
                      struct error *err)
{
    const struct run_config *config = &s->config;
    struct search found = {
        .interval = config->rollout_log_interval, .last_version = c->table_version, .next_item = c->table_item, .boundary = -1
    };
    struct buf record = { .max = ROLLOUT_RECORD_MAX + 1 };
    struct error why;
    char path[PATH_MAX];
    *t = (struct wandb_table){ .json = BUF_INIT, .n_col = N_COLUMNS };
    if (config->rollout_log_interval == 0)
        return true;
    if (!journal_items_read(j, c->table_item, item_look, &found, err))
        return false;
    bool last = over && found.any && found.due && found.n > 0 && !found.complete;
    c->table_item = last ? found.last_item + 1 : found.next_item;
    if (!found.complete && !last)
        return true;
    t->version = c->table_version = found.version;
    if (!run_config_groups_path(config, s->run_dir, path, sizeof path))
        return error_set(err, ERR_USAGE, "the path of the run '%s' is too long", s->run_dir);
    buf_str(&t->json, columns);
    for (int i = 0; i < found.n; i++)
        if (!record_add(t, path, found.place[i].offset, found.place[i].bytes, &record, &why))
            log_warn("a rollout is left out of a wandb table: %s", why.text);
    buf_str(&t->json, "]}");
    buf_release(&record);
    if (t->json.failed) {
        t->n_row = 0;
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of rollouts");
    }
    struct digest d;
    digest_init(&d, true);
    digest_add(&d, buf_text(&t->json), t->json.len);
    digest_hex(&d, t->sha256);
    return true;
}
