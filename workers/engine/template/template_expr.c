/* template_expr.c - the expressions of a template, after jinja2 3.1's parser.py: where it is quirky, so is this */
#include <string.h>
#include "workers/engine/template/template_lex.h"

static struct expr *expr_or(struct parse *p);
static struct expr *expr_unary(struct parse *p, bool with_filter);

static struct expr *expr_new(struct parse *p, enum expr_kind kind)
{
    struct expr *e = jinja_pool_take(&p->fail, sizeof *e);
    e->kind = kind;
    e->line = p->now.line;
    return e;
}

static void arg_push(struct parse *p, struct expr *e, struct expr *arg)
{
    if ((e->n_arg & (e->n_arg - 1)) == 0) {    // at powers of two
        struct expr **more = jinja_pool_take(&p->fail, sizeof *more * (size_t)MAX(2 * e->n_arg, 1));
        if (e->n_arg)
            memcpy(more, e->arg, sizeof *more * (size_t)e->n_arg);
        e->arg = more;
    }
    e->arg[e->n_arg++] = arg;
}

static bool is_tuple_end(const struct parse *p, const char *end_name)
{
    return p->now.kind == T_VAR_END || p->now.kind == T_BLOCK_END || lex_is_op(p, ")") || (end_name && lex_is_name(p, end_name));
}

static struct expr *expr_primary(struct parse *p, bool with_namespace);

struct expr *jinja_tuple_read(struct parse *p, enum tuple_mode mode, const char *end_name, bool in_brackets)
{
    struct expr *t = expr_new(p, E_TUPLE);
    bool tuple = false;
    for (;;) {
        if (t->n_arg)
            lex_expect_op(p, ",");
        if (is_tuple_end(p, end_name))
            break;
        arg_push(p, t, mode == TUPLE_TARGET ? expr_primary(p, true) : mode == TUPLE_FULL ? jinja_expr_read(p) : expr_or(p));
        if (!lex_is_op(p, ","))
            break;
        tuple = true;
    }
    if (!tuple && t->n_arg == 1)
        return t->arg[0];
    if (!tuple && !in_brackets)
        lex_unexpected(p, "an expression");
    return t;
}

static struct expr *expr_dict(struct parse *p)
{
    struct expr *e = expr_new(p, E_DICT);
    lex_expect_op(p, "{");
    while (!lex_is_op(p, "}")) {
        if (e->n_arg) {
            lex_expect_op(p, ",");
            if (lex_is_op(p, "}"))
                break;
        }
        arg_push(p, e, jinja_expr_read(p));
        lex_expect_op(p, ":");
        arg_push(p, e, jinja_expr_read(p));
    }
    lex_expect_op(p, "}");
    return e;
}

static struct expr *expr_string(struct parse *p)
{
    struct expr *e = expr_new(p, E_CONST);
    e->value = jinja_str(p->now.text.p, p->now.text.len);
    lex_advance(p);
    while (p->now.kind == T_STRING) {    // strings side by side are one
        char *both = jinja_pool_take(&p->fail, e->value.s.len + p->now.text.len + 1);
        memcpy(both, e->value.s.p, e->value.s.len);
        memcpy(both + e->value.s.len, p->now.text.p, p->now.text.len);
        e->value = jinja_str(both, e->value.s.len + p->now.text.len);
        lex_advance(p);
    }
    return e;
}

static struct expr *expr_primary(struct parse *p, bool with_namespace)
{
    static const struct {
        const char *name;
        enum value_kind kind;
        bool b;
    } consts[] = {
        { "true", V_BOOL, true },   { "True", V_BOOL, true },  { "false", V_BOOL, false },
        { "False", V_BOOL, false }, { "none", V_NONE, false }, { "None", V_NONE, false },
    };
    static const struct {
        const char *name;
        unsigned use;
    } special[] = { { "varargs", USES_VARARGS }, { "kwargs", USES_KWARGS }, { "caller", USES_CALLER } };
    struct expr *e;
    lex_deeper(p);
    if (p->now.kind == T_NAME) {
        e = expr_new(p, E_NAME);
        e->name = lex_expect_name(p);
        for (size_t i = 0; i < ARRAY_SIZE(consts); i++)
            if (jinja_str_is(e->name, consts[i].name)) {
                e->kind = E_CONST;
                e->value = (struct value){ .kind = consts[i].kind, .b = consts[i].b };
            }
        for (size_t i = 0; i < ARRAY_SIZE(special); i++)
            if (jinja_str_is(e->name, special[i].name))
                p->uses |= special[i].use;
        if (e->kind == E_NAME && with_namespace && lex_skip_op(p, ".")) {
            e->kind = E_NSREF;
            e->attr = lex_expect_name(p);
        }
    } else if (p->now.kind == T_STRING) {
        e = expr_string(p);
    } else if (p->now.kind == T_INT || p->now.kind == T_FLOAT) {
        e = expr_new(p, E_CONST);
        e->value = p->now.value;
        lex_advance(p);
    } else if (lex_skip_op(p, "(")) {
        e = jinja_tuple_read(p, TUPLE_FULL, NULL, true);
        lex_expect_op(p, ")");
    } else if (lex_is_op(p, "[")) {
        e = expr_new(p, E_LIST);
        lex_advance(p);
        while (!lex_is_op(p, "]")) {
            if (e->n_arg) {
                lex_expect_op(p, ",");
                if (lex_is_op(p, "]"))
                    break;
            }
            arg_push(p, e, jinja_expr_read(p));
        }
        lex_expect_op(p, "]");
    } else if (lex_is_op(p, "{")) {
        e = expr_dict(p);
    } else {
        lex_unexpected(p, "an expression");
    }
    p->depth--;
    return e;
}

static void call_args(struct parse *p, struct expr *e)
{
    bool comma = false;
    struct str names[64];
    struct expr *values[64];
    lex_expect_op(p, "(");
    while (!lex_is_op(p, ")")) {
        if (comma) {
            lex_expect_op(p, ",");
            if (lex_is_op(p, ")"))
                break;
        }
        comma = true;
        if (!e->star && !e->star_kw && lex_skip_op(p, "*")) {
            e->star = jinja_expr_read(p);
            continue;
        }
        if (!e->star_kw && lex_skip_op(p, "**")) {
            e->star_kw = jinja_expr_read(p);
            continue;
        }
        if (e->star_kw)
            jinja_fail_set(&p->fail, ERR_DATA, "an argument after '**'");
        if (p->now.kind == T_NAME && lex_peek(p)->kind == T_OP && jinja_str_is(lex_peek(p)->text, "=")) {
            if (e->n_kw >= (int)ARRAY_SIZE(names))
                jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than %zu keyword arguments", ARRAY_SIZE(names));
            names[e->n_kw] = lex_expect_name(p);
            lex_advance(p);
            values[e->n_kw] = jinja_expr_read(p);
            e->n_kw++;
        } else if (e->n_kw || e->star) {
            jinja_fail_set(&p->fail, ERR_DATA, "an argument without a name after %s", e->star ? "'*'" : "one with a name");
        } else {
            arg_push(p, e, jinja_expr_read(p));
        }
    }
    lex_expect_op(p, ")");
    if (e->n_kw) {
        e->kw_name = jinja_pool_take(&p->fail, sizeof names[0] * (size_t)e->n_kw);
        e->kw = jinja_pool_take(&p->fail, sizeof values[0] * (size_t)e->n_kw);
        memcpy(e->kw_name, names, sizeof names[0] * (size_t)e->n_kw);
        memcpy(e->kw, values, sizeof values[0] * (size_t)e->n_kw);
    }
}

static struct expr *expr_subscribed(struct parse *p)
{
    struct expr *from = NULL;
    if (!lex_is_op(p, ":")) {
        from = jinja_expr_read(p);
        if (!lex_is_op(p, ":"))
            return from;
    }
    struct expr *e = expr_new(p, E_SLICE);
    lex_advance(p);
    e->a = from;
    if (!lex_is_op(p, ":") && !lex_is_op(p, "]") && !lex_is_op(p, ","))
        e->b = jinja_expr_read(p);
    if (lex_skip_op(p, ":") && !lex_is_op(p, "]") && !lex_is_op(p, ","))
        e->c = jinja_expr_read(p);
    return e;
}

static struct expr *expr_subscript(struct parse *p, struct expr *subject)
{
    struct expr *e = expr_new(p, E_ATTR);
    e->a = subject;
    if (lex_skip_op(p, ".")) {
        if (p->now.kind == T_NAME) {
            e->name = lex_expect_name(p);
            return e;
        }
        if (p->now.kind != T_INT)
            lex_unexpected(p, "a name or a number");
        e->kind = E_ITEM;
        e->b = expr_new(p, E_CONST);
        e->b->value = p->now.value;
        lex_advance(p);
        return e;
    }
    lex_expect_op(p, "[");
    e->kind = E_ITEM;
    struct expr *t = expr_new(p, E_TUPLE);
    while (!lex_is_op(p, "]")) {
        if (t->n_arg)
            lex_expect_op(p, ",");
        arg_push(p, t, expr_subscribed(p));
    }
    lex_expect_op(p, "]");
    e->b = t->n_arg == 1 ? t->arg[0] : t;
    for (int i = 0; t->n_arg != 1 && i < t->n_arg; i++)
        if (t->arg[i]->kind == E_SLICE)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "a slice among several subscripts is not supported");
    return e;
}

static struct expr *call_new(struct parse *p, struct expr *callee)
{
    struct expr *e = expr_new(p, E_CALL);
    e->a = callee;
    call_args(p, e);
    return e;
}

static struct expr *expr_postfix(struct parse *p, struct expr *e)
{
    for (;;) {
        if (lex_is_op(p, ".") || lex_is_op(p, "["))
            e = expr_subscript(p, e);
        else if (lex_is_op(p, "("))
            e = call_new(p, e);
        else
            return e;
    }
}

struct expr *jinja_filter_read(struct parse *p, struct expr *subject)
{
    struct expr *e = expr_new(p, E_FILTER);
    e->a = subject;
    e->name = lex_expect_name(p);
    e->function = jinja_filter_find(e->name);
    if (!e->function)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the filter '%.*s' is not supported", (int)e->name.len, e->name.p);
    if (lex_is_op(p, "("))
        call_args(p, e);
    return e;
}

static struct expr *expr_test(struct parse *p, struct expr *subject)
{
    bool negated = lex_skip_name(p, "not");
    struct expr *e = expr_new(p, E_TEST);
    e->a = subject;
    e->name = lex_expect_name(p);
    e->function = jinja_test_find(e->name);
    if (!e->function)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the test '%.*s' is not supported", (int)e->name.len, e->name.p);
    bool arg = p->now.kind == T_STRING || p->now.kind == T_INT || p->now.kind == T_FLOAT || lex_is_op(p, "[") || lex_is_op(p, "{")
               || (p->now.kind == T_NAME && !lex_is_name(p, "else") && !lex_is_name(p, "or") && !lex_is_name(p, "and"));
    if (lex_is_op(p, "(")) {
        call_args(p, e);
    } else if (arg) {
        if (lex_is_name(p, "is"))
            jinja_fail_set(&p->fail, ERR_DATA, "tests cannot be chained with 'is'");
        struct expr *a = expr_primary(p, false);
        arg_push(p, e, expr_postfix(p, a));
    }
    if (!negated)
        return e;
    struct expr *n = expr_new(p, E_NOT);
    n->a = e;
    return n;
}

static struct expr *expr_unary(struct parse *p, bool with_filter)
{
    struct expr *e;
    lex_deeper(p);
    if (lex_is_op(p, "-") || lex_is_op(p, "+")) {
        e = expr_new(p, lex_is_op(p, "-") ? E_NEG : E_POS);
        lex_advance(p);
        e->a = expr_unary(p, false);
    } else {
        e = expr_primary(p, false);
    }
    e = expr_postfix(p, e);
    while (with_filter) {
        if (lex_skip_op(p, "|"))
            e = jinja_filter_read(p, e);
        else if (lex_skip_name(p, "is"))
            e = expr_test(p, e);
        else if (lex_is_op(p, "("))
            e = call_new(p, e);
        else
            break;
    }
    p->depth--;
    return e;
}

/* Left-associative operators, by level from the tightest. */
static const struct {
    const char *sign;
    int op;
    int level;
} binaries[] = {
    { "**", OP_POW, 0 }, { "*", OP_MUL, 1 }, { "/", OP_DIV, 1 }, { "//", OP_FLOORDIV, 1 },
    { "%", OP_MOD, 1 },  { "+", OP_ADD, 3 }, { "-", OP_SUB, 3 },
};

static struct expr *expr_binary(struct parse *p, int level)
{
    if (level < 0)
        return expr_unary(p, true);
    if (level == 2) {    // ~ joins any number
        struct expr *first = expr_binary(p, 1);
        if (!lex_is_op(p, "~"))
            return first;
        struct expr *e = expr_new(p, E_CONCAT);
        arg_push(p, e, first);
        while (lex_skip_op(p, "~"))
            arg_push(p, e, expr_binary(p, 1));
        return e;
    }
    struct expr *left = expr_binary(p, level - 1);
    for (int n = 0;; n++) {
        size_t i = 0;
        while (i < ARRAY_SIZE(binaries) && !(binaries[i].level == level && lex_is_op(p, binaries[i].sign)))
            i++;
        if (i == ARRAY_SIZE(binaries))
            return left;
        if (n > 2000)    // the tree leans left, and is walked by recursion
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_BINARY);
        lex_advance(p);
        e->op = binaries[i].op;
        e->a = left;
        e->b = expr_binary(p, level - 1);
        left = e;
    }
}

static struct expr *expr_compare(struct parse *p)
{
    static const struct {
        const char *sign;
        int op;
    } signs[] = {
        { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT }, { "<=", OP_LE }, { ">", OP_GT }, { ">=", OP_GE },
    };
    struct expr *left = expr_binary(p, 3), *e = NULL;
    int ops[64];
    for (;;) {
        int op = 0;
        for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
            if (lex_is_op(p, signs[i].sign))
                op = signs[i].op;
        if (!op && lex_is_name(p, "in"))
            op = OP_IN;
        if (!op && lex_is_name(p, "not") && lex_peek(p)->kind == T_NAME && jinja_str_is(lex_peek(p)->text, "in")) {
            op = OP_NOT_IN;
            lex_advance(p);
        }
        if (!op)
            break;
        if (!e)
            e = expr_new(p, E_COMPARE);
        if (e->n_arg >= (int)ARRAY_SIZE(ops))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than %zu comparisons in a row", ARRAY_SIZE(ops));
        lex_advance(p);
        ops[e->n_arg] = op;
        arg_push(p, e, expr_binary(p, 3));
    }
    if (!e)
        return left;
    e->a = left;
    e->ops = jinja_pool_take(&p->fail, sizeof ops[0] * (size_t)e->n_arg);
    memcpy(e->ops, ops, sizeof ops[0] * (size_t)e->n_arg);
    return e;
}

static struct expr *expr_not(struct parse *p)
{
    if (!lex_is_name(p, "not"))
        return expr_compare(p);
    lex_deeper(p);
    struct expr *e = expr_new(p, E_NOT);
    lex_advance(p);
    e->a = expr_not(p);
    p->depth--;
    return e;
}

static struct expr *expr_and(struct parse *p)
{
    struct expr *left = expr_not(p);
    for (int n = 0; lex_is_name(p, "and"); n++) {
        if (n > 2000)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_AND);
        lex_advance(p);
        e->a = left;
        e->b = expr_not(p);
        left = e;
    }
    return left;
}

static struct expr *expr_or(struct parse *p)
{
    struct expr *left = expr_and(p);
    for (int n = 0; lex_is_name(p, "or"); n++) {
        if (n > 2000)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_OR);
        lex_advance(p);
        e->a = left;
        e->b = expr_and(p);
        left = e;
    }
    return left;
}

struct expr *jinja_expr_read(struct parse *p)
{
    lex_deeper(p);
    struct expr *value = expr_or(p);
    while (lex_is_name(p, "if")) {
        struct expr *e = expr_new(p, E_COND);
        lex_advance(p);
        lex_deeper(p);
        e->a = value;
        e->b = expr_or(p);
        e->c = lex_skip_name(p, "else") ? jinja_expr_read(p) : NULL;
        p->depth--;
        value = e;
    }
    p->depth--;
    return value;
}
