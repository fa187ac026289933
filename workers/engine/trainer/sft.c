#include "workers/engine/trainer/sft.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/model/model.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/template/messages.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

struct sft_data {
    int32_t *token;    // all rows, one after the other
    float *weight;     // same shape
    int64_t n_tok, cap_tok;
    int64_t *first;    // (n_row + 1)
    int64_t n_row, n_too_long;
};
/* A row being read. */
struct sft_reader {
    const struct tokenizer *tok;
    const struct template *chat;    // NULL: texts are put together as they are
    struct encoder *enc;
    const json_t *tools;         // of the row; NULL: none
    struct buf before, after;    // the conversation up to a turn, and with it
    struct token_list ids;
    int64_t max_tok;
};

void sft_data_free(struct sft_data *d)
{
    if (!d)
        return;
    free(d->token);
    free(d->weight);
    free(d->first);
    free(d);
}

static bool data_add(struct sft_data *d, const int32_t *id, int64_t n, float weight, struct error *err)
{
    if (d->n_tok + n > d->cap_tok) {
        int64_t cap = MAX(2 * d->cap_tok, d->n_tok + n + 4096);
        int32_t *token = realloc(d->token, (size_t)cap * sizeof *token);
        if (token)
            d->token = token;
        float *w = token ? realloc(d->weight, (size_t)cap * sizeof *w) : NULL;
        if (!w)
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " tokens", cap);
        d->weight = w;
        d->cap_tok = cap;
    }
    for (int64_t i = 0; i < n; i++) {
        d->token[d->n_tok] = id[i];
        d->weight[d->n_tok++] = weight;
    }
    return true;
}

static bool piece_encode(struct sft_reader *r, const char *text, size_t len, struct error *err)
{
    r->ids.n = 0;
    return encoder_encode(r->enc, text, len, 0, &r->ids, err);
}

/* One assistant turn: what stands before it has no loss, the turn has, up to its end token. *done: bytes already
 * encoded. */
static bool turn_add(struct sft_reader *r, struct sft_data *d, const json_t *upto, const json_t *with, size_t *done, struct error *err)
{
    struct chat_options prompt = { .add_generation_prompt = true, .tools = r->tools }, whole = { .tools = r->tools };
    buf_clear(&r->before);
    buf_clear(&r->after);
    if (!template_chat(r->chat, upto, &prompt, &r->before, err) || !template_chat(r->chat, with, &whole, &r->after, err))
        return false;
    if (r->before.len < *done || r->after.len < r->before.len || memcmp(buf_text(&r->after), buf_text(&r->before), r->before.len) != 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "the chat template writes a turn differently once it is answered, so that no "
                         "part of the text can be told to be the answer");
    if (!piece_encode(r, buf_text(&r->before) + *done, r->before.len - *done, err) || !data_add(d, r->ids.id, r->ids.n, 0, err))
        return false;
    if (!piece_encode(r, buf_text(&r->after) + r->before.len, r->after.len - r->before.len, err))
        return false;
    int64_t n = 0;
    while (n < r->ids.n && !tokenizer_is_eos(r->tok, r->ids.id[n]))
        n++;
    n = MIN(n + 1, r->ids.n);
    *done = r->after.len;
    return data_add(d, r->ids.id, n, 1, err) && data_add(d, r->ids.id + n, r->ids.n - n, 0, err);
}

/* The conversation of a row with its last answer in it; returns a new reference, NULL: see err. */
static json_t *row_messages(json_t *row, struct error *err)
{
    json_t *messages = json_object_get(row, "messages"), *answer = json_object_get(row, "answer");
    const char *role = json_string_value(json_object_get(json_array_get(messages, json_array_size(messages) - 1), "role"));
    if (role && strcmp(role, "assistant") == 0)
        return messages_flatten(messages, err);
    if (!json_is_string(answer)) {
        error_set(err, ERR_DATA, "the last message is not the assistant's and there is no text 'answer'");
        return NULL;
    }
    json_t *copy = json_copy(messages);
    if (!copy || json_array_append_new(copy, json_pack("{s:s, s:O}", "role", "assistant", "content", answer)) != 0) {
        json_decref(copy);
        error_set(err, ERR_NO_MEMORY, "no memory for a conversation");
        return NULL;
    }
    messages = messages_flatten(copy, err);
    json_decref(copy);
    return messages;
}

/* Without a chat template: system message and question, which have no loss, and the answer up to the end token. */
static bool plain_add(struct sft_reader *r, struct sft_data *d, const json_t *messages, struct error *err)
{
    size_t n = json_array_size(messages);
    const json_t *last = json_array_get(messages, n - 1), *answer = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role"));
    int n_eos;
    const int32_t *eos = tokenizer_eos(r->tok, &n_eos);
    buf_clear(&r->before);
    if (json_array_size(r->tools) > 0 || !role || strcmp(role, "assistant") != 0 || !json_is_string(answer)
        || !plain_chat(messages, n - 1, &r->before))
        return error_set(err, ERR_DATA,
                         "only the text of one question and its answer can be learned without a chat template, and the model directory has "
                         "none; put one there as chat_template.jinja for conversations and tools");
    if (n_eos == 0)
        return error_set(err, ERR_DATA,
                         "the tokenizer names no end token for an answer to end with; give it as 'eos_token' in "
                         "tokenizer_config.json");
    if (r->before.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for a conversation");
    r->ids.n = 0;
    return encoder_encode(r->enc, buf_text(&r->before), r->before.len, ENCODE_ADD_BEGIN, &r->ids, err)
           && data_add(d, r->ids.id, r->ids.n, 0, err) && piece_encode(r, json_string_value(answer), json_string_length(answer), err)
           && data_add(d, r->ids.id, r->ids.n, 1, err) && data_add(d, eos, 1, 1, err);
}

static bool row_add(struct sft_reader *r, struct sft_data *d, json_t *row, struct error *err)
{
    bool ok = false;
    int64_t at = d->n_tok;
    size_t done = 0;
    json_t *upto = json_array(), *messages = row_messages(row, err);
    r->tools = json_object_get(row, "tools");
    if (!messages)
        goto out;
    if (!r->chat && !plain_add(r, d, messages, err))
        goto out;
    for (size_t i = 0; r->chat && i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *with = json_copy(upto);
        const char *role = json_string_value(json_object_get(m, "role"));
        bool mine = role && strcmp(role, "assistant") == 0;
        bool added = with && json_array_append(with, m) == 0 && (!mine || turn_add(r, d, upto, with, &done, err));
        json_decref(upto);
        upto = with;
        if (!added)
            goto out;
    }
    while (d->n_tok > at && d->weight[d->n_tok - 1] == 0)    // what stands behind the last end token teaches nothing
        d->n_tok--;
    if (d->n_tok - at > r->max_tok || d->n_tok - at < 2) {
        d->n_too_long++;
        d->n_tok = at;
    } else {
        d->first[++d->n_row] = d->n_tok;
    }
    ok = true;
out:
    json_decref(upto);
    json_decref(messages);
    return ok;
}

struct sft_data *sft_data_open(const char *path, const struct tokenizer *tok, const struct template *chat, int64_t max_tok,
                               struct error *err)
{
    bool ok = false;
    struct sft_data *d = calloc(1, sizeof *d);
    struct sft_reader r = { .tok = tok, .chat = chat, .max_tok = max_tok };
    struct dataset *set = dataset_open(path, &(struct dataset_columns){ .whole = true }, err);
    if (!set)
        goto out;
    if (!d || !(d->first = calloc((size_t)dataset_n_row(set) + 1, sizeof *d->first))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the rows of '%s'", path);
        goto out;
    }
    TRY(r.enc = encoder_new(tok, true, err));
    for (int64_t i = 0; i < dataset_n_row(set); i++) {
        json_t *row = dataset_row(set, i, err);
        bool added = row && row_add(&r, d, row, err);
        json_decref(row);
        if (!added) {
            char where[512];
            error_wrap(err, "%s", dataset_where(set, i, where, sizeof where));
            goto out;
        }
    }
    if (d->n_row == 0) {
        error_set(err, ERR_DATA, "'%s': no row of at most %" PRId64 " tokens", path, max_tok);
        goto out;
    }
    ok = true;
out:
    encoder_free(r.enc);
    buf_release(&r.before);
    buf_release(&r.after);
    token_list_release(&r.ids);
    dataset_free(set);
    if (!ok) {
        sft_data_free(d);
        d = NULL;
    }
    return d;
}

int64_t sft_data_n(const struct sft_data *d)
{
    return d->n_row;
}

int64_t sft_data_n_too_long(const struct sft_data *d)
{
    return d->n_too_long;
}

int64_t sft_data_row(const struct sft_data *d, int64_t i, const int32_t **token, const float **weight)
{
    *token = d->token + d->first[i];
    *weight = d->weight + d->first[i];
    return d->first[i + 1] - d->first[i];
}

/* ---- training */
static void order_shuffle(int64_t *order, int64_t n, uint64_t seed, int64_t epoch)
{
    uint64_t state = seed * 0x2545f4914f6cdd1du + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {    // Fisher and Yates; the modulo's bias is below n / 2^64
        int64_t k = (int64_t)(mix64_next(&state) % (uint64_t)(i + 1)), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
}

static struct sft_seq row_seq(const struct sft_data *d, int64_t i)
{
    struct sft_seq s;
    s.n_tok = sft_data_row(d, i, &s.token, &s.weight);
    return s;
}

bool sft_run(struct trainer *t, const struct sft_stage *stage, bool (*told)(void *arg, const struct sft_progress *p), void *arg,
             struct error *err)
{
    bool ok = false;
    int64_t n = stage->data->n_row, at = n, epoch = 0, n_tok = 0, t0 = clock_ns();
    int64_t *order = malloc((size_t)n * sizeof *order);
    struct sft_seq *seq = malloc((size_t)stage->batch_rows * sizeof *seq);
    if (!order || !seq) {
        error_set(err, ERR_NO_MEMORY, "no memory to order %" PRId64 " rows", n);
        goto out;
    }
    TRY(trainer_adam_reset(t, err));
    for (int64_t step = 0; step < stage->n_step; step++) {
        for (int64_t i = 0; i < stage->batch_rows; i++) {
            if (at == n) {
                order_shuffle(order, n, stage->seed, epoch++);
                at = 0;
            }
            seq[i] = row_seq(stage->data, order[at++]);
            n_tok += seq[i].n_tok;
        }
        struct trainer_hyper h;
        trainer_hyper_init(&h);
        h.lr = schedule_lr(&stage->schedule, stage->lr, step);
        h.weight_decay = stage->weight_decay;
        h.max_norm = stage->max_norm;
        struct sft_progress p = { .step = step + 1, .n_step = stage->n_step, .lr = h.lr };
        double n_loss;
        TRY(trainer_sft_step(t, seq, stage->batch_rows, &h, true, &p.loss, &n_loss, &p.grad_norm, err));
        p.tok_per_s = (double)n_tok / ((double)(clock_ns() - t0) * 1e-9);
        if (told && !told(arg, &p)) {
            error_set(err, ERR_STOPPED, "stopped at step %" PRId64 " of %" PRId64, p.step, p.n_step);
            goto out;
        }
    }
    ok = true;
out:
    free(order);
    free(seq);
    return ok;
}

bool sft_evaluate(struct trainer *t, const struct sft_data *d, double *loss, double *n_loss_tok, struct error *err)
{
    double sum = 0, n = 0;
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    for (int64_t at = 0; at < d->n_row; at += 64) {    // the trainer packs; 64 rows only bound the list
        struct sft_seq seq[64];
        double part, n_part, unused;
        int64_t k = MIN((int64_t)64, d->n_row - at);
        for (int64_t i = 0; i < k; i++)
            seq[i] = row_seq(d, at + i);
        if (!trainer_sft_step(t, seq, k, &h, false, &part, &n_part, &unused, err))
            return false;
        sum += n_part > 0 ? part * n_part : 0;
        n += n_part;
    }
    *loss = sum / n;
    *n_loss_tok = n;
    return true;
}
