/* template_args.h - the arguments of a function as bound by its call; only for template*.c */
#pragma once
#include "workers/engine/template/template_parts.h"

#define TEXT(v) jinja_text(r, v)
static inline bool given(struct value v)
{
    return v.kind != V_MISSING;
}

static inline struct value str_value(struct str s)
{
    return jinja_str(s.p, s.len);
}

static inline int64_t whole_arg(struct render *r, struct value v, int64_t fallback)
{
    if (!given(v))
        return fallback;
    if (v.kind != V_INT && v.kind != V_BOOL)
        jinja_fail_set(&r->fail, ERR_DATA, "a whole number is needed, not a %s", jinja_type(&v));
    return v.kind == V_INT ? v.i : v.b;
}

static inline struct str str_arg(struct render *r, struct value v)
{
    if (v.kind != V_STR)
        jinja_fail_set(&r->fail, ERR_DATA, "a string is needed, not a %s", jinja_type(&v));
    return v.s;
}

/* A row for a method that Python has and templates may not use here. */
#define REFUSED(name)                                                                                                                      \
    {                                                                                                                                      \
        name, "", NULL, true                                                                                                               \
    }
// clang-format off
