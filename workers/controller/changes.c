#include "workers/controller/changes.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

#define TEXT_MAX ((size_t)1 << 16)    // of one command's changes, in words

void effect_release(struct effect *effect)
{
    buf_release(&effect->text);
    free(effect->detail);
    effect->detail = NULL;
}

void changes_release(struct changes *k)
{
    free(k->change);
    *k = (struct changes){ 0 };
}

/* ---- the settings of a step ---- */

void config_at(const struct controller *c, int64_t step, int64_t rollout_step, struct run_config *out)
{
    struct error err;
    *out = c->config;
    for (int64_t i = 0; i < c->changes.n; i++) {
        const struct knob_change *k = &c->changes.change[i];
        if (k->voided)
            continue;
        bool holds = k->knob->applies == APPLY_NEXT_STEP      ? k->step <= step
                     : k->knob->applies == APPLY_NEXT_ROLLOUT ? k->rollout_step <= rollout_step
                                                              : true;
        if (holds && !run_config_set(out, k->knob->name, k->value, FROM_COMMAND, NULL, &err))
            log_error("an earlier change cannot be taken: %s", err.text);
    }
}

void settings_write(const struct run_config *then, struct msg_out *m)
{
    struct buf text = BUF_INIT;
    msg_map(m, "knobs");
    for (int i = 0; i < n_knobs; i++)
        if (knob_is_live(&knobs[i]) && then->source[i] == FROM_COMMAND)
            msg_str(m, knobs[i].name, knob_text(&knobs[i], then, &text));
    msg_end(m);
    buf_release(&text);
}

void knobs_write(const struct controller *c, int64_t step, int64_t rollout_step, struct msg_out *m)
{
    struct run_config *then = malloc(sizeof *then);
    BUG_IF(!then, "no memory for the settings of a step");
    config_at(c, step, rollout_step, then);
    settings_write(then, m);
    free(then);
}

/* ---- the journal ---- */

static bool changes_save(struct controller *c, struct error *err)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < c->changes.n; i++) {
        const struct knob_change *k = &c->changes.change[i];
        json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:s,s:s,s:s,s:I,s:I,s:b,s:b}", "step", (json_int_t)k->step, "rollout_step",
                                              (json_int_t)k->rollout_step, "group", (json_int_t)k->group, "name", k->knob->name, "value",
                                              k->value, "before", k->before, "made", (json_int_t)k->made, "undoes", (json_int_t)k->undoes,
                                              "undone", k->undone, "voided", k->voided));
    }
    char *text = json_text_dump(list, JSON_COMPACT);
    json_decref(list);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for the changes of knobs");
    bool ok = transaction(c, err) && journal_value_put(c->journal, "changes", text, strlen(text), err);
    free(text);
    return ok;
}

/* Room for one more, and the place for it; it counts once k->n has grown. */
static struct knob_change *change_room(struct changes *k)
{
    if (k->n == k->cap) {
        int64_t cap = MAX(2 * k->cap, (int64_t)16);
        struct knob_change *p = realloc(k->change, (size_t)cap * sizeof *p);
        if (!p)
            return NULL;
        k->change = p;
        k->cap = cap;
    }
    return &k->change[k->n];
}

static bool change_load(struct changes *k, const json_t *row, struct error *err)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *value = json_string_value(json_object_get(row, "value"));
    const char *before = json_string_value(json_object_get(row, "before"));
    struct knob_change *n = change_room(k);
    if (!n)
        return error_set(err, ERR_NO_MEMORY, "no memory for the changes of knobs");
    if (!name || !value || !before)
        return error_set(err, ERR_DATA, "the journal's changes of knobs cannot be read");
    *n = (struct knob_change){ .step = json_integer_value(json_object_get(row, "step")),
                               .rollout_step = json_integer_value(json_object_get(row, "rollout_step")),
                               .group = json_integer_value(json_object_get(row, "group")),
                               .undoes = json_integer_value(json_object_get(row, "undoes")),
                               .undone = json_is_true(json_object_get(row, "undone")),
                               .voided = json_is_true(json_object_get(row, "voided")),
                               .knob = knob_find(name, err) };
    const json_t *made = json_object_get(row, "made");
    n->made = made ? json_integer_value(made) : n->step;    // an earlier release did not keep it
    if (!n->knob)
        return false;
    snprintf(n->value, sizeof n->value, "%s", value);
    snprintf(n->before, sizeof n->before, "%s", before);
    k->group = MAX(k->group, n->group);
    k->n++;
    return true;
}

bool changes_load(struct controller *c, struct error *err)
{
    bool found, ok = false;
    struct buf text = BUF_INIT;
    json_error_t jerr;
    json_t *list = NULL, *row;
    size_t i;
    TRY(journal_value_get(c->journal, "changes", &text, &found, err));
    if (found && !(list = json_text_read(text.data, text.len, 0, &jerr))) {
        error_set(err, ERR_DATA, "the journal's changes of knobs cannot be read");
        goto out;
    }
    json_array_foreach(list, i, row) TRY(change_load(&c->changes, row, err));
    ok = true;
out:
    json_decref(list);
    buf_release(&text);
    return ok;
}

/* ---- changing ---- */

/* next: the first optimizer step that can still be another. */
static bool change_add(struct controller *c, const struct knob *k, const char *value, const char *before, int64_t next, struct error *err)
{
    struct ledger_state s = { 0 };
    struct knob_change *n = change_room(&c->changes);
    if (!n)
        return error_set(err, ERR_NO_MEMORY, "no memory for a change of '%s'", k->name);
    if (c->ledger)
        ledger_state(c->ledger, &s);
    /* batches that are cut and rollout steps that are open keep what they were made with */
    bool shapes = strcmp(k->name, "train_batch_size") == 0 || strcmp(k->name, "filter_range") == 0
                  || strcmp(k->name, "filter_no_spread") == 0;
    *n = (struct knob_change){
        .step = shapes ? MAX(s.n_batch, next) : next, .rollout_step = s.n_open, .knob = k, .group = c->changes.group, .made = c->step
    };
    snprintf(n->value, sizeof n->value, "%s", value);
    snprintf(n->before, sizeof n->before, "%s", before);
    c->changes.n++;
    return true;
}

/* Into the words and the list of facts. config: with all changes of the command. */
static void change_tell(const struct knob_change *n, const struct run_config *config, struct buf *text, json_t *list)
{
    const struct knob *k = n->knob;
    char from[64] = "now";
    if (k->applies == APPLY_NEXT_STEP)
        snprintf(from, sizeof from, "optimizer step %" PRId64, n->step + 1);
    else if (k->applies == APPLY_NEXT_ROLLOUT)
        snprintf(from, sizeof from, "rollout step %" PRId64, n->rollout_step + 1);
    buf_fmt(text, "%s%s: %s -> %s from %s on", text->len ? "; " : "", k->name, n->before, n->value, from);
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", k->name, "before", n->before, "value", n->value, "from", from));
    const char *idle = knob_idle(k, config);
    if (idle)
        buf_fmt(text, " (without effect: %s)", idle);
}

/* Note each of n changes from c->now to next. */
static bool changes_note(struct controller *c, const char *const *name, int n, const struct run_config *next, int64_t next_step,
                         struct buf *text, json_t *list, struct error *err)
{
    struct buf before = BUF_INIT, after = BUF_INIT;
    bool ok = true;
    c->changes.group++;
    for (int i = 0; ok && i < n; i++) {
        const struct knob *k = knob_find(name[i], err);
        knob_text(k, &c->now, &before);
        knob_text(k, next, &after);
        ok = change_add(c, k, buf_text(&after), buf_text(&before), next_step, err);
        if (ok)
            change_tell(&c->changes.change[c->changes.n - 1], next, text, list);
    }
    buf_release(&before);
    buf_release(&after);
    return ok;
}

bool changes_make(struct controller *c, const char *const *name, const char *const *value, int n, int64_t next_step, struct effect *effect,
                  struct error *err)
{
    struct run_config *next = malloc(sizeof *next);
    json_t *list = json_array(), *facts = NULL;
    struct run_plan plan;
    bool ok = false;
    *effect = (struct effect){ .text = { .max = TEXT_MAX } };
    if (!next || !list) {
        error_set(err, ERR_NO_MEMORY, "no memory for settings");
        goto out;
    }
    TRY(knobs_propose(&c->config, &c->now, name, value, n, next, err));
    TRY(c->n_row == 0 || run_plan_make(&plan, next, c->n_row, err));
    TRY(changes_note(c, name, n, next, next_step, &effect->text, list, err));
    TRY(changes_save(c, err));
    c->now = *next;
    TRY(length_set(c, err));
    TRY(!c->ledger || ledger_advance(c, err));
    facts = json_pack("{s:O}", "changes", list);
    effect->detail = facts ? json_text_dump(facts, JSON_COMPACT) : NULL;
    ok = true;
out:
    json_decref(facts);
    json_decref(list);
    free(next);
    return ok;
}

/* ---- taking back ---- */

/* The newest group on the stack: its last change's place; -1: it is empty. */
static int64_t stack_top(const struct changes *k)
{
    int64_t i = k->n - 1;
    while (i >= 0 && (k->change[i].voided || k->change[i].undone || k->change[i].undoes))
        i--;
    return i;
}

bool changes_undo(struct controller *c, int64_t next_step, struct effect *effect, struct error *err)
{
    struct changes *k = &c->changes;
    const char *name[CHANGES_AT_ONCE];
    char text[CHANGES_AT_ONCE][RUN_TEXT_MAX];
    const char *value[CHANGES_AT_ONCE];
    int64_t top = stack_top(k), group = top >= 0 ? k->change[top].group : 0, before = k->n;
    int n = 0;
    if (top < 0)
        return error_set(err, ERR_REFUSED,
                         k->n > 0 ? "every change of a knob in this run is taken back already" : "no knob has been changed in this run");
    for (int64_t i = top; i >= 0 && k->change[i].group == group && n < CHANGES_AT_ONCE; i--, n++) {
        name[n] = k->change[i].knob->name;
        value[n] = memcpy(text[n], k->change[i].before, sizeof text[n]);    // the list may move
    }
    if (!changes_make(c, name, value, n, next_step, effect, err))
        return false;
    for (int64_t i = before; i < k->n; i++)
        k->change[i].undoes = group;
    for (int64_t i = top; i >= 0 && k->change[i].group == group; i--)
        k->change[i].undone = true;
    return changes_save(c, err);
}

void changes_undo_say(const struct changes *k, struct buf *out)
{
    int64_t top = stack_top(k);
    for (int64_t i = top; i >= 0 && k->change[i].group == k->change[top].group; i--)
        buf_fmt(out, "%s%s %s -> %s", out->len ? "; " : "", k->change[i].knob->name, k->change[i].value, k->change[i].before);
}

/* Does the run lose this change when it goes back to step? */
static bool is_since(const struct knob_change *k, int64_t step)
{
    return !k->voided && k->made >= step;
}

void changes_since(const struct changes *k, int64_t step, struct buf *out)
{
    for (int64_t i = 0; i < k->n; i++)
        if (is_since(&k->change[i], step))
            buf_fmt(out, "%s%s %s -> %s (step %" PRId64 ")", out->len ? "; " : "", k->change[i].knob->name, k->change[i].before,
                    k->change[i].value, k->change[i].made);
}

/* The last change that holds; -1: none. */
static int64_t last_holding(const struct changes *k)
{
    int64_t i = k->n - 1;
    while (i >= 0 && k->change[i].voided)
        i--;
    return i;
}

int64_t changes_made_last(const struct changes *k)
{
    int64_t i = last_holding(k);
    return i >= 0 ? k->change[i].made : -1;
}

void changes_last_say(const struct changes *k, struct buf *out)
{
    int64_t last = last_holding(k), i = last;
    while (i > 0 && k->change[i - 1].group == k->change[last].group)
        i--;
    for (; last >= 0 && i <= last; i++)
        buf_fmt(out, "%s%s %s -> %s", out->len ? "; " : "", k->change[i].knob->name, k->change[i].before, k->change[i].value);
}

/* A group that a voided one took back is on the stack again. */
static void group_restore(struct changes *k, int64_t group)
{
    for (int64_t i = 0; group > 0 && i < k->n; i++)
        if (k->change[i].group == group)
            k->change[i].undone = false;
}

/* Note that k's setting has the value again that it had at the step the run goes back to. Exporters follow the list by its length, so
 * what was in it stays, and this comes after it. */
static bool restored_add(struct controller *c, const struct knob *k, const struct run_config *then, int64_t step, struct effect *effect,
                         json_t *list, struct error *err)
{
    struct buf is = BUF_INIT, was = BUF_INIT;
    const char *now = knob_text(k, &c->now, &is), *value = knob_text(k, then, &was);
    bool ok = true;
    if (strcmp(now, value) != 0) {
        ok = change_add(c, k, value, now, step, err);
        if (ok) {
            struct knob_change *n = &c->changes.change[c->changes.n - 1];
            n->voided = true;
            buf_fmt(&effect->text, "%s%s: %s -> %s", effect->text.len ? "; " : "", k->name, now, value);
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", k->name, "before", now, "value", value, "from", "now"));
        }
    }
    buf_release(&is);
    buf_release(&was);
    return ok;
}

bool changes_void(struct controller *c, int64_t step, struct effect *effect, struct error *err)
{
    struct changes *k = &c->changes;
    struct run_config *then = malloc(sizeof *then);
    json_t *list = json_array(), *facts = NULL;
    int64_t n = k->n;
    bool ok = false;
    *effect = (struct effect){ .text = { .max = TEXT_MAX } };
    if (!then || !list) {
        error_set(err, ERR_NO_MEMORY, "no memory for settings");
        goto out;
    }
    for (int64_t i = 0; i < n; i++)
        if (is_since(&k->change[i], step)) {
            k->change[i].voided = true;
            group_restore(k, k->change[i].undoes);
        }
    config_at(c, INT64_MAX, INT64_MAX, then);
    k->group++;
    for (int i = 0; i < n_knobs; i++)
        if (knob_is_live(&knobs[i]))
            TRY(restored_add(c, &knobs[i], then, step, effect, list, err));
    TRY(changes_save(c, err));
    c->now = *then;
    if (json_array_size(list) > 0) {
        facts = json_pack("{s:O}", "changes", list);
        effect->detail = facts ? json_text_dump(facts, JSON_COMPACT) : NULL;
    }
    ok = true;
out:
    json_decref(facts);
    json_decref(list);
    free(then);
    return ok;
}
