#include "workers/engine/text/normalizer.h"
#include <string.h>

/* One after the other, two normal forms are one: K when either is, composed or not as the second says (UAX 15, section 1.1). */
static enum normal_form form_after(enum normal_form first, enum normal_form second)
{
    if (first != FORM_NFKC && first != FORM_NFKD)
        return second;
    return second == FORM_NFC ? FORM_NFKC : second == FORM_NFD ? FORM_NFKD : second;
}

static bool step_add(struct normalizer *n, enum normal_form form, const char *from, const char *to, const char *name, struct error *err)
{
    struct normal_step *last = n->n ? &n->step[n->n - 1] : NULL;
    if (form != FORM_NONE && last && last->form != FORM_NONE) {
        last->form = form_after(last->form, form);
        return true;
    }
    if (n->n == NORMAL_STEPS_MAX)
        return error_set(err, ERR_UNSUPPORTED, "%s: more than %d normalizers", name, NORMAL_STEPS_MAX);
    struct normal_step *s = &n->step[n->n++];
    s->form = form;
    return (buf_str(&s->from, from) && buf_str(&s->to, to)) || error_set(err, ERR_NO_MEMORY, "no memory for a normalizer");
}

static bool one_read(struct normalizer *n, const json_t *spec, int depth, const char *name, struct error *err)
{
    static const struct {
        const char *type;
        enum normal_form form;
    } forms[] = {
        { "NFC", FORM_NFC },
        { "NFD", FORM_NFD },
        { "NFKC", FORM_NFKC },
        { "NFKD", FORM_NFKD },
    };
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "normalizers"), *one;
    size_t i;
    if (type && strcmp(type, "Sequence") == 0 && json_is_array(list) && depth < 4) {
        json_array_foreach(list, i, one) if (!one_read(n, one, depth + 1, name, err)) return false;
        return true;
    }
    for (i = 0; type && i < ARRAY_SIZE(forms); i++)
        if (strcmp(type, forms[i].type) == 0)
            return step_add(n, forms[i].form, "", "", name, err);
    const char *before = json_string_value(json_object_get(spec, "prepend")), *to = json_string_value(json_object_get(spec, "content"));
    const char *from = json_string_value(json_object_get(json_object_get(spec, "pattern"), "String"));
    if (type && strcmp(type, "Prepend") == 0 && before)
        return step_add(n, FORM_NONE, "", before, name, err);
    if (type && strcmp(type, "Replace") == 0 && from && from[0] && to)
        return step_add(n, FORM_NONE, from, to, name, err);
    return error_set(err, ERR_UNSUPPORTED, "%s: the normalizer '%s'%s is not supported", name, type ? type : "without a type",
                     type && strcmp(type, "Replace") == 0 ? " of a regular expression" : "");
}

bool normalizer_read(struct normalizer *n, const json_t *spec, const char *name, struct error *err)
{
    return !spec || json_is_null(spec) || one_read(n, spec, 0, name, err);
}

void normalizer_release(struct normalizer *n)
{
    for (int i = 0; i < n->n; i++) {
        buf_release(&n->step[i].from);
        buf_release(&n->step[i].to);
    }
    n->n = 0;
}

bool normal_replace(struct buf *out, const uint8_t *text, size_t len, const struct buf *from, const struct buf *to)
{
    const uint8_t *end = text + len, *hit;
    while (text < end && (hit = memmem(text, (size_t)(end - text), from->data, from->len))) {
        if (!buf_add(out, text, (size_t)(hit - text)) || !buf_add(out, buf_text(to), to->len))
            return false;
        text = hit + from->len;
    }
    return buf_add(out, text, (size_t)(end - text));
}

/* Does the step leave such a text as it is? */
static bool step_is_idle(const struct normal_step *s, const uint8_t *p, size_t len)
{
    bool ascii, may_change;
    if (s->form == FORM_NONE)
        return s->from.len > 0 && !memmem(p, len, s->from.data, s->from.len);
    utf8_valid_len(p, len, &ascii, &may_change);
    return s->form == FORM_NFC ? !may_change : ascii;
}

bool normalizer_apply(const struct normalizer *n, const struct unicode *u, const uint8_t **p, size_t *len, struct buf work[2],
                      struct error *err)
{
    for (int i = 0; i < n->n && *len != 0; i++) {
        const struct normal_step *s = &n->step[i];
        if (step_is_idle(s, *p, *len))
            continue;
        struct buf *out = work[0].data == (const char *)*p ? &work[1] : &work[0];
        buf_clear(out);
        bool ok = s->form != FORM_NONE ? unicode_normalize(u, s->form, *p, *len, out, err)
                  : s->from.len > 0    ? normal_replace(out, *p, *len, &s->from, &s->to)
                                       : buf_add(out, buf_text(&s->to), s->to.len) && buf_add(out, *p, *len);
        if (!ok)
            return s->form == FORM_NONE && error_set(err, ERR_NO_MEMORY, "no memory to normalise a text of %zu bytes", *len);
        *p = (const uint8_t *)buf_text(out);
        *len = out->len;
    }
    return true;
}
