#include "protocol/record/settings_kept.h"
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/record/journal.h"

#define SHOWN_BYTES 80    // of a value in a message

json_t *settings_kept_make(const struct run_config *c)
{
    struct buf text = BUF_INIT;
    json_t *o = json_object();
    for (int i = 0; o && i < n_knobs; i++)
        if (json_object_set_new(o, knobs[i].name, json_text_new(knob_text(&knobs[i], c, &text))) != 0) {
            json_decref(o);
            o = NULL;
        }
    buf_release(&text);
    return o;
}

bool settings_kept_read(struct journal *j, json_t **out, struct error *err)
{
    struct buf text = BUF_INIT;
    json_error_t je;
    bool found, ok = journal_value_get(j, SETTINGS_KEPT, &text, &found, err);
    *out = ok && found ? json_text_read(text.data, text.len, 0, &je) : NULL;
    if (ok && found && !json_is_object(*out)) {    // a macro that takes its argument twice
        json_decref(*out);
        *out = NULL;
        ok = error_set(err, ERR_DATA, "the journal's value '%s' holds no settings", SETTINGS_KEPT);
    }
    buf_release(&text);
    return ok;
}

bool setting_differs(const json_t *was, const struct knob *k, const struct run_config *c)
{
    struct buf text = BUF_INIT;
    const char *before = json_string_value(json_object_get(was, k->name));
    bool other = before && strcmp(before, knob_text(k, c, &text)) != 0;
    buf_release(&text);
    return other;
}

static void value_tell(struct buf *text, const char *value)
{
    size_t len = strlen(value);
    buf_fmt(text, "'%.*s%s'", (int)MIN(len, (size_t)SHOWN_BYTES), value, len > SHOWN_BYTES ? "..." : "");
}

void setting_tell(struct buf *text, const json_t *was, const struct knob *k, const struct run_config *c)
{
    struct buf is = BUF_INIT;
    const char *before = json_string_value(json_object_get(was, k->name));
    buf_fmt(text, "%s%s is ", text->len ? ", " : "", k->name);
    value_tell(text, knob_text(k, c, &is));
    buf_str(text, " (was ");
    value_tell(text, before ? before : "");
    buf_str(text, ")");
    buf_release(&is);
}

/* The controller keeps all changes of knobs, oldest first, as the value "changes". */
bool settings_now(struct run_config *out, const struct run_config *began, struct journal *j, const char *base_dir, struct error *err)
{
    struct buf text = BUF_INIT;
    struct error ignored;
    bool found = false, ok = journal_value_get(j, "changes", &text, &found, err);
    json_t *list = ok && found ? json_text_read(buf_text(&text), text.len, 0, NULL) : NULL, *row;
    size_t i;
    *out = *began;
    json_array_foreach(list, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name")), *value = json_string_value(json_object_get(row, "value"));
        if (name && value && !json_is_true(json_object_get(row, "voided"))
            && !run_config_set(out, name, value, FROM_COMMAND, base_dir, &ignored))
            continue;    // a knob of a newer rollcall
    }
    json_decref(list);
    buf_release(&text);
    return ok;
}
