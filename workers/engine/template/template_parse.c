/* template_parse.c - the statements of a template, after jinja2 3.1's parser.py: where it is quirky, so is this
 *
 * All newlines become one kind, and a final one is dropped. */
#include <string.h>
#include "workers/engine/template/template_lex.h"
#include "workers/engine/text/unicode.h"

static struct stmt *stmts_read(struct parse *p, const char *const *ends);

static struct stmt *stmt_new(struct parse *p, enum stmt_kind kind)
{
    struct stmt *s = jinja_pool_take(&p->fail, sizeof *s);
    s->kind = kind;
    s->line = p->now.line;
    return s;
}

static void block_end(struct parse *p)
{
    if (p->now.kind != T_BLOCK_END)
        lex_unexpected(p, "%}");
    lex_advance(p);
}

static void target_check(struct parse *p, const struct expr *e, bool nsref)
{
    bool ok = e->kind == E_NAME || (e->kind == E_NSREF && nsref) || e->kind == E_TUPLE;
    for (int i = 0; ok && e->kind == E_TUPLE && i < e->n_arg; i++)
        target_check(p, e->arg[i], nsref);
    if (!ok)
        jinja_fail_set(&p->fail, ERR_DATA, "cannot assign to this");
}

/* The inside of the tag has been read: read the body up to one of the ends, and stop after that name. */
static struct stmt *body_read(struct parse *p, const char *const *ends)
{
    if (p->now.kind != T_BLOCK_END)
        lex_unexpected(p, "%}");
    lex_advance(p);
    return stmts_read(p, ends);
}

static struct stmt *if_read(struct parse *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct stmt *s = stmt_new(p, S_IF), *first = s;
    for (;;) {
        s->expr = jinja_tuple_read(p, TUPLE_NO_COND, NULL, false);
        s->body = body_read(p, ends);
        if (!lex_skip_name(p, "elif"))
            break;
        s = s->other = stmt_new(p, S_IF);
    }
    if (lex_skip_name(p, "else"))
        s->other = body_read(p, ends + 2);
    lex_advance(p);
    return first;
}

static struct stmt *for_read(struct parse *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct stmt *s = stmt_new(p, S_FOR);
    s->target = jinja_tuple_read(p, TUPLE_TARGET, "in", false);
    target_check(p, s->target, false);
    if (!lex_skip_name(p, "in"))
        lex_unexpected(p, "'in'");
    s->expr = jinja_tuple_read(p, TUPLE_NO_COND, "recursive", false);
    if (lex_skip_name(p, "if"))
        s->filter = jinja_expr_read(p);
    if (lex_is_name(p, "recursive"))
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "recursive loops are not supported");
    p->loops++;
    s->body = body_read(p, ends);
    p->loops--;
    if (lex_skip_name(p, "else"))
        s->other = body_read(p, ends + 1);
    lex_advance(p);
    return s;
}

static struct stmt *set_read(struct parse *p)
{
    static const char *const ends[] = { "endset", NULL };
    struct stmt *s = stmt_new(p, S_SET);
    s->target = jinja_tuple_read(p, TUPLE_TARGET, NULL, false);
    target_check(p, s->target, true);
    if (lex_skip_op(p, "=")) {
        s->expr = jinja_tuple_read(p, TUPLE_FULL, NULL, false);
        return s;
    }
    s->kind = S_SET_BLOCK;
    while (lex_skip_op(p, "|"))
        s->expr = jinja_filter_read(p, s->expr);
    s->body = body_read(p, ends);
    lex_advance(p);
    return s;
}

/* The parameters of a macro or a call block, in brackets. */
static void params_read(struct parse *p, struct stmt *s)
{
    struct str names[32];
    struct expr *defaults[32];
    lex_expect_op(p, "(");
    while (!lex_is_op(p, ")")) {
        if (s->n_param)
            lex_expect_op(p, ",");
        if (s->n_param >= (int)ARRAY_SIZE(names))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "a macro with more than %zu parameters", ARRAY_SIZE(names));
        names[s->n_param] = lex_expect_name(p);
        if (jinja_str_is(names[s->n_param], "caller"))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "a parameter named 'caller' is not supported");
        defaults[s->n_param] = NULL;
        if (lex_skip_op(p, "="))
            defaults[s->n_param] = jinja_expr_read(p);
        else if (s->n_param && defaults[s->n_param - 1])
            jinja_fail_set(&p->fail, ERR_DATA, "a parameter without a default after one with a default");
        s->n_param++;
    }
    lex_expect_op(p, ")");
    s->param = jinja_pool_take(&p->fail, sizeof names[0] * (size_t)(s->n_param + 1));
    s->param_default = jinja_pool_take(&p->fail, sizeof defaults[0] * (size_t)(s->n_param + 1));
    memcpy(s->param, names, sizeof names[0] * (size_t)s->n_param);
    memcpy(s->param_default, defaults, sizeof defaults[0] * (size_t)s->n_param);
}

/* A body that is run elsewhere: loops around it do not count, and what it uses is noted. */
static void macro_body_read(struct parse *p, struct stmt *s, const char *const *ends)
{
    int loops = p->loops;
    unsigned uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    s->body = body_read(p, ends);
    s->uses = p->uses;
    for (int i = 0; i < s->n_param; i++)
        s->uses &= ~(jinja_str_is(s->param[i], "varargs") ? (unsigned)USES_VARARGS : 0u)
                   & ~(jinja_str_is(s->param[i], "kwargs") ? (unsigned)USES_KWARGS : 0u);
    p->uses |= uses;
    p->loops = loops;
    lex_advance(p);
}

static struct stmt *macro_read(struct parse *p)
{
    static const char *const ends[] = { "endmacro", NULL };
    struct stmt *s = stmt_new(p, S_MACRO);
    s->text = lex_expect_name(p);
    params_read(p, s);
    macro_body_read(p, s, ends);
    return s;
}

/* {% call(x) f(y) %}: f(y) with a keyword argument caller, a macro of x that gives the body. */
static struct stmt *call_read(struct parse *p)
{
    static const char *const ends[] = { "endcall", NULL };
    struct stmt *s = stmt_new(p, S_CALL);
    s->text = (struct str){ "caller", 6 };
    if (lex_is_op(p, "("))
        params_read(p, s);
    s->expr = jinja_expr_read(p);
    if (s->expr->kind != E_CALL)
        jinja_fail_set(&p->fail, ERR_DATA, "what 'call' names is not a call");
    macro_body_read(p, s, ends);
    return s;
}

/* {% filter a|b %}: the body through filters. */
static struct stmt *filter_read(struct parse *p)
{
    static const char *const ends[] = { "endfilter", NULL };
    struct stmt *s = stmt_new(p, S_FILTER);
    int loops = p->loops;
    do
        s->expr = jinja_filter_read(p, s->expr);
    while (lex_skip_op(p, "|"));
    p->loops = 0;
    s->body = body_read(p, ends);
    p->loops = loops;
    lex_advance(p);
    return s;
}

/* {% generation %}: marks what an assistant said; renders as its body, in its own scope. */
static struct stmt *generation_read(struct parse *p)
{
    static const char *const ends[] = { "endgeneration", NULL };
    struct stmt *s = stmt_new(p, S_SCOPE);
    int loops = p->loops;
    p->loops = 0;
    s->body = body_read(p, ends);
    p->loops = loops;
    lex_advance(p);
    return s;
}

static struct stmt *jump_read(struct parse *p, enum stmt_kind kind, const char *name)
{
    if (p->loops == 0)
        jinja_fail_set(&p->fail, ERR_DATA, "'%s' outside of a loop", name);
    return stmt_new(p, kind);
}

static struct stmt *break_read(struct parse *p)
{
    return jump_read(p, S_BREAK, "break");
}

static struct stmt *continue_read(struct parse *p)
{
    return jump_read(p, S_CONTINUE, "continue");
}

static const struct {
    const char *name;
    struct stmt *(*read)(struct parse *p);
} statements[] = {
    { "if", if_read },
    { "for", for_read },
    { "set", set_read },
    { "macro", macro_read },
    { "generation", generation_read },
    { "break", break_read },
    { "continue", continue_read },
    { "call", call_read },
    { "filter", filter_read },
};

static struct stmt *tag_read(struct parse *p)
{
    if (p->now.kind != T_NAME)
        lex_unexpected(p, "a statement");
    for (size_t i = 0; i < ARRAY_SIZE(statements); i++)
        if (lex_is_name(p, statements[i].name)) {
            lex_advance(p);
            return statements[i].read(p);
        }
    jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the statement '%.*s' is not supported here", (int)MIN(p->now.text.len, (size_t)40),
                   p->now.text.p);
}

/* Statements up to {% NAME where NAME is one of ends (p->now is then NAME), or with ends NULL up to the end of the template. */
static struct stmt *stmts_read(struct parse *p, const char *const *ends)
{
    struct stmt *first = NULL, **last = &first;
    lex_deeper(p);
    for (;;) {
        struct stmt *s;
        if (p->now.kind == T_END) {
            if (ends)
                jinja_fail_set(&p->fail, ERR_DATA, "the template ends where {%% %s %%} is expected", ends[0]);
            break;
        }
        if (p->now.kind == T_TEXT) {
            s = stmt_new(p, S_TEXT);
            s->text = p->now.text;
            lex_advance(p);
        } else if (p->now.kind == T_VAR_BEGIN) {
            s = stmt_new(p, S_OUTPUT);
            lex_advance(p);
            s->expr = jinja_tuple_read(p, TUPLE_FULL, NULL, false);
            if (p->now.kind != T_VAR_END)
                lex_unexpected(p, "}}");
            lex_advance(p);
        } else {
            lex_advance(p);    // over {%
            bool ended = false;
            for (int i = 0; ends && ends[i]; i++)
                ended |= lex_is_name(p, ends[i]);
            if (ended)
                break;
            s = tag_read(p);
            block_end(p);
        }
        *last = s;
        last = &s->next;
    }
    p->depth--;
    return first;
}

/* One kind of newline, none at the end. */
static size_t newlines_unify(char *out, const char *source, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            out[n++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            out[n++] = source[i];
        }
    }
    return n > 0 && out[n - 1] == '\n' ? n - 1 : n;
}

bool template_parse(struct template *t, const char *source, size_t len, struct error *err)
{
    if (len > TEMPLATE_BYTES_MAX)
        return error_set(err, ERR_DATA, "%s: the template has %zu bytes, more than %zu", t->name, len, TEMPLATE_BYTES_MAX);
    if (utf8_valid_len((const uint8_t *)source, len, NULL, NULL) != len)
        return error_set(err, ERR_DATA, "%s: the template is not UTF-8", t->name);
    t->pool.max = (size_t)256 << 20;
    struct parse p = { .fail = { .err = err, .name = t->name, .line = 1, .pool = &t->pool }, .line = 1 };
    if (setjmp(p.fail.at))
        return false;
    char *src = jinja_pool_take(&p.fail, len + 1);
    p.src = p.at = src;
    p.end = src + newlines_unify(src, source, len);
    lex_advance(&p);
    t->body = stmts_read(&p, NULL);
    return true;
}
