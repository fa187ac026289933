/* Rendering a template: what transformers' apply_chat_template does with jinja2 3.1 (sandboxed and immutable,
 * trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception, strftime_now). What is easy to get
 * wrong:
 *  - a variable set in the body of a loop, a macro or a block set is gone at its end; one set in an if stays;
 *  - a name is looked up from the inner scope to the outer, then in the variables given, then among the functions;
 *  - x.name looks for a method of the type first, then for a member; x["name"] the other way round;
 *  - an undefined value prints nothing, is false and empty, but its members and sums are errors;
 *  - known difference: jinja2 decides at compile time which scope a name belongs to, so a name read in an inner loop
 *    and set only later in the enclosing loop is undefined there; here it is still the outer one;
 *  - a filter binds closer than "+"; "x is false" is about the value False, "not x" about truth. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_parts.h"

#define EVAL_DEPTH_MAX 1000    // nested evaluations: they use at most 1 MiB of the 8 MiB of stack

enum flow {
    FLOW_ON,
    FLOW_BREAK,
    FLOW_CONTINUE,
};
static enum flow stmts_exec(struct render *r, const struct stmt *s, struct scope *scope);

struct buf *jinja_temp_new(struct render *r)
{
    struct temp *t = jinja_pool_take(&r->fail, sizeof *t);
    t->b.max = RENDER_OUTPUT_MAX;
    t->next = r->temps;
    r->temps = t;
    return &t->b;
}

static struct value expr_eval(struct render *r, const struct expr *e, struct scope *scope);

static struct scope *scope_new(struct render *r, struct scope *up)
{
    struct scope *s = jinja_pool_take(&r->fail, sizeof *s);
    s->up = up;
    return s;
}

static struct value name_get(struct render *r, struct str name, struct scope *scope)
{
    for (; scope; scope = scope->up) {
        struct value *v = jinja_dict_get_str(&scope->vars, name);
        render_step(r, 1 + scope->vars.n / 8);
        if (v)
            return *v;
    }
    const struct function *f = jinja_global_find(name);
    return f ? (struct value){ .kind = V_FUNCTION, .function = f } : jinja_of(V_UNDEFINED);
}

static void target_set(struct render *r, const struct expr *target, struct value v, struct scope *scope)
{
    if (target->kind == E_NAME) {
        jinja_dict_set(r, &scope->vars, jinja_str(target->name.p, target->name.len), v);
    } else if (target->kind == E_NSREF) {
        struct value ns = name_get(r, target->name, scope);
        if (ns.kind != V_NAMESPACE)
            jinja_fail_set(&r->fail, ERR_DATA, "'%.*s' is not a namespace", (int)target->name.len, target->name.p);
        jinja_dict_set(r, ns.dict, jinja_str(target->attr.p, target->attr.len), v);
    } else {
        const struct list *l = jinja_items(r, v);
        if (l->n != target->n_arg)
            jinja_fail_set(&r->fail, ERR_DATA, "%" PRId64 " values for %d names", l->n, target->n_arg);
        for (int i = 0; i < target->n_arg; i++)
            target_set(r, target->arg[i], l->v[i], scope);
    }
}

/* ---- calls ---- */

/* The arguments of a call; with room for one more with a name. */
static struct args args_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    struct args a = { .n = e->n_arg, .n_kw = e->n_kw };
    const struct list *more = e->star ? jinja_items(r, expr_eval(r, e->star, scope)) : NULL;
    struct value named = e->star_kw ? expr_eval(r, e->star_kw, scope) : jinja_of(V_MISSING);
    int64_t n_more = more ? more->n : 0, n_named = named.kind == V_DICT ? named.dict->n : 0;
    if (named.kind != V_MISSING && named.kind != V_DICT)
        jinja_fail_set(&r->fail, ERR_DATA, "a %s after '**'", jinja_type(&named));
    if (n_more + n_named > 100000)
        jinja_fail_set(&r->fail, ERR_FULL, "more than 100000 arguments");
    a.v = jinja_pool_take(&r->fail, sizeof *a.v * (size_t)(a.n + n_more + 1));
    a.kw = jinja_pool_take(&r->fail, sizeof *a.kw * (size_t)(a.n_kw + n_named + 1));
    for (int i = 0; i < a.n; i++)
        a.v[i] = expr_eval(r, e->arg[i], scope);
    for (int64_t i = 0; i < n_more; i++)
        a.v[a.n++] = more->v[i];
    for (int i = 0; i < a.n_kw; i++)
        a.kw[i] = (struct keyword){ e->kw_name[i], expr_eval(r, e->kw[i], scope) };
    for (int64_t i = 0; i < n_named; i++) {
        struct value k = named.dict->key[i];
        if (k.kind != V_STR)
            jinja_fail_set(&r->fail, ERR_DATA, "the name of an argument is a %s", jinja_type(&k));
        for (int n = 0; n < e->n_kw; n++)
            if (jinja_str_equal(a.kw[n].name, k.s))
                jinja_fail_set(&r->fail, ERR_DATA, "the argument '%.*s' is given twice", (int)MIN(k.s.len, (size_t)80), k.s.p);
        a.kw[a.n_kw++] = (struct keyword){ k.s, named.dict->value[i] };
    }
    return a;
}

/* Bind arguments to the names in f->params, into v[first...]; v has PARAMS_MAX + 1 places. */
void jinja_args_bind(struct render *r, const struct function *f, struct value *v, int first, const struct args *a)
{
    const char *name = f->params;
    int n = first;
    for (int i = first; i <= PARAMS_MAX; i++)
        v[i] = jinja_of(V_MISSING);
    if (!f->params)
        return;
    int given_kw = 0;
    while (*name) {
        size_t len = strcspn(name, " ");
        if (n - first < a->n)
            v[n] = a->v[n - first];
        for (int i = 0; i < a->n_kw; i++)
            if (jinja_str_equal(a->kw[i].name, (struct str){ name, len })) {
                if (n - first < a->n)
                    jinja_fail_set(&r->fail, ERR_DATA, "%s: '%.*s' is given twice", f->name, (int)len, name);
                v[n] = a->kw[i].value;
                given_kw++;
            }
        n++;
        name += len + (name[len] == ' ');
    }
    if (a->n > n - first || given_kw < a->n_kw)
        jinja_fail_set(&r->fail, ERR_DATA, "%s: an argument it does not take", f->name);
}

/* What a macro's call gives besides its parameters: used says which of the arguments with a name are taken. As jinja2's Macro. */
static void macro_rest_set(struct render *r, const struct stmt *def, const struct args *a, bool *used, struct scope *scope)
{
    struct value rest = jinja_list_new(r, V_TUPLE, 0), named = jinja_dict_new(r), caller = jinja_of(V_UNDEFINED);
    for (int i = def->n_param; i < a->n; i++)
        jinja_list_push(r, rest.list, a->v[i]);
    for (int k = 0; k < a->n_kw && def->uses & USES_CALLER; k++)
        if (jinja_str_is(a->kw[k].name, "caller")) {
            caller = a->kw[k].value;
            used[k] = true;
        }
    for (int k = 0; k < a->n_kw; k++)
        if (!used[k])
            jinja_dict_set(r, named.dict, jinja_str(a->kw[k].name.p, a->kw[k].name.len), a->kw[k].value);
    if (rest.list->n > 0 && !(def->uses & USES_VARARGS))
        jinja_fail_set(&r->fail, ERR_DATA, "macro '%.*s' takes %d arguments, not %d", (int)def->text.len, def->text.p, def->n_param, a->n);
    if (named.dict->n > 0 && !(def->uses & USES_KWARGS))
        jinja_fail_set(&r->fail, ERR_DATA, "macro '%.*s' has no such argument", (int)def->text.len, def->text.p);
    if (def->uses & USES_VARARGS)
        jinja_dict_set(r, &scope->vars, jinja_str("varargs", 7), rest);
    if (def->uses & USES_KWARGS)
        jinja_dict_set(r, &scope->vars, jinja_str("kwargs", 6), named);
    if (def->uses & USES_CALLER)
        jinja_dict_set(r, &scope->vars, jinja_str("caller", 6), caller);
}

static struct value macro_call(struct render *r, const struct macro *m, const struct args *a)
{
    const struct stmt *def = m->def;
    struct scope *scope = scope_new(r, m->scope);
    bool *used = jinja_pool_take(&r->fail, sizeof *used * (size_t)(a->n_kw + 1));
    for (int i = 0; i < def->n_param; i++) {
        struct value v = i < a->n ? a->v[i] : jinja_of(V_MISSING);
        for (int k = 0; k < a->n_kw && i >= a->n; k++)
            if (jinja_str_equal(a->kw[k].name, def->param[i])) {
                v = a->kw[k].value;
                used[k] = true;
            }
        if (v.kind == V_MISSING)
            v = def->param_default[i] ? expr_eval(r, def->param_default[i], scope) : jinja_of(V_UNDEFINED);
        jinja_dict_set(r, &scope->vars, jinja_str(def->param[i].p, def->param[i].len), v);
    }
    macro_rest_set(r, def, a, used, scope);
    struct buf *outer = r->out, *inner = jinja_temp_new(r);
    r->out = inner;
    stmts_exec(r, def->body, scope);
    r->out = outer;
    return jinja_from_buf(r, inner);
}

struct value jinja_call(struct render *r, struct value f, struct args *a)
{
    struct value v[PARAMS_MAX + 1];
    if (f.kind == V_MACRO)
        return macro_call(r, f.macro, a);
    if (f.kind != V_FUNCTION && f.kind != V_METHOD)
        jinja_fail_set(&r->fail, ERR_DATA, f.kind == V_UNDEFINED ? "something undefined is called" : "a %s is called", jinja_type(&f));
    const struct function *fn = f.kind == V_METHOD ? f.bound->method : f.function;
    if (fn->refused)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "calling '%s' is not supported", fn->name);
    int first = f.kind == V_METHOD;
    if (first)
        v[0] = f.bound->self;
    jinja_args_bind(r, fn, v, first, a);
    return fn->call(r, v, a);
}

struct value jinja_filter_call(struct render *r, const struct function *f, struct value subject, const struct args *a)
{
    struct value v[PARAMS_MAX + 1];
    v[0] = subject;
    render_step(r, 1);
    jinja_args_bind(r, f, v, 1, a);
    return f->call(r, v, a);
}

bool jinja_test_call(struct render *r, const struct function *f, struct value subject, const struct args *a)
{
    struct value v = jinja_filter_call(r, f, subject, a);
    return jinja_true(r, v);
}

/* ---- expressions ---- */

static struct value compare_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    struct value left = expr_eval(r, e->a, scope);
    for (int i = 0; i < e->n_arg; i++) {
        struct value right = expr_eval(r, e->arg[i], scope);
        int op = e->ops[i];
        bool yes = false;
        if (op == OP_EQ || op == OP_NE) {
            yes = jinja_equal(r, left, right, 0) == (op == OP_EQ);
        } else if (op == OP_IN || op == OP_NOT_IN) {
            yes = jinja_in(r, left, right) == (op == OP_IN);
        } else {
            int c = jinja_compare(r, left, right, 0);
            yes = op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
        }
        if (!yes)
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct value sign_eval(struct render *r, struct value v, bool minus)
{
    if (!jinja_is_number(v))
        jinja_fail_set(&r->fail, ERR_DATA, "a sign before a %s", jinja_type(&v));
    if (v.kind == V_FLOAT)
        return jinja_float(minus ? -v.f : v.f);
    return jinja_binary(r, minus ? OP_SUB : OP_ADD, jinja_int(0), v);
}

static struct value collect_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    if (e->kind == E_DICT) {
        struct value d = jinja_dict_new(r);
        for (int i = 0; i < e->n_arg; i += 2) {
            struct value k = expr_eval(r, e->arg[i], scope);
            jinja_dict_set(r, d.dict, k, expr_eval(r, e->arg[i + 1], scope));
        }
        return d;
    }
    struct value l = jinja_list_new(r, e->kind == E_LIST ? V_LIST : V_TUPLE, e->n_arg);
    for (int i = 0; i < e->n_arg; i++)
        jinja_list_push(r, l.list, expr_eval(r, e->arg[i], scope));
    return l;
}

static struct value concat_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    struct buf *b = jinja_temp_new(r);
    for (int i = 0; i < e->n_arg; i++)
        jinja_print(r, b, expr_eval(r, e->arg[i], scope));
    return jinja_from_buf(r, b);
}

static struct value item_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    struct value v = expr_eval(r, e->a, scope);
    if (e->b->kind != E_SLICE)
        return jinja_item(r, v, expr_eval(r, e->b, scope));
    const struct expr *part[3] = { e->b->a, e->b->b, e->b->c };
    struct value at[3];
    for (int i = 0; i < 3; i++)
        at[i] = part[i] ? expr_eval(r, part[i], scope) : jinja_of(V_MISSING);
    return jinja_slice(r, v, at[0], at[1], at[2]);
}

static struct value expr_eval_kind(struct render *r, const struct expr *e, struct scope *scope)
{
    struct value v;
    switch (e->kind) {
    case E_CONST: return e->value;
    case E_NAME: return name_get(r, e->name, scope);
    case E_NSREF: return jinja_attr(r, name_get(r, e->name, scope), e->attr);
    case E_LIST:
    case E_TUPLE:
    case E_DICT: return collect_eval(r, e, scope);
    case E_ATTR: return jinja_attr(r, expr_eval(r, e->a, scope), e->name);
    case E_ITEM: return item_eval(r, e, scope);
    case E_SLICE: jinja_fail_set(&r->fail, ERR_DATA, "a slice outside of brackets");
    case E_CALL: {
        v = expr_eval(r, e->a, scope);
        struct args a = args_eval(r, e, scope);
        r->fail.line = e->line;
        return jinja_call(r, v, &a);
    }
    case E_FILTER:
    case E_TEST: {
        v = e->a ? expr_eval(r, e->a, scope) : jinja_from_buf(r, r->out);    // no subject: the text of a block set
        struct args a = args_eval(r, e, scope);
        r->fail.line = e->line;
        if (e->function->refused)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "'%s' is not supported", e->function->name);
        return jinja_filter_call(r, e->function, v, &a);
    }
    case E_NOT: return jinja_bool(!jinja_true(r, expr_eval(r, e->a, scope)));
    case E_AND: v = expr_eval(r, e->a, scope); return jinja_true(r, v) ? expr_eval(r, e->b, scope) : v;
    case E_OR: v = expr_eval(r, e->a, scope); return jinja_true(r, v) ? v : expr_eval(r, e->b, scope);
    case E_COMPARE: return compare_eval(r, e, scope);
    case E_BINARY: v = expr_eval(r, e->a, scope); return jinja_binary(r, e->op, v, expr_eval(r, e->b, scope));
    case E_NEG:
    case E_POS: return sign_eval(r, expr_eval(r, e->a, scope), e->kind == E_NEG);
    case E_CONCAT: return concat_eval(r, e, scope);
    case E_COND:
        if (jinja_true(r, expr_eval(r, e->b, scope)))
            return expr_eval(r, e->a, scope);
        return e->c ? expr_eval(r, e->c, scope) : jinja_of(V_UNDEFINED);
    }
    return jinja_of(V_UNDEFINED);
}

static void deeper(struct render *r)
{
    render_step(r, 1);
    if (++r->depth > EVAL_DEPTH_MAX)
        jinja_fail_set(&r->fail, ERR_FULL, "evaluations nested deeper than %d", EVAL_DEPTH_MAX);
}

static struct value expr_eval(struct render *r, const struct expr *e, struct scope *scope)
{
    deeper(r);
    r->fail.line = e->line;
    struct value v = expr_eval_kind(r, e, scope);
    r->depth--;
    return v;
}

/* ---- statements ---- */

/* The items for which the loop's "if" holds. */
static struct list *items_filter(struct render *r, const struct stmt *s, const struct list *items, struct scope *scope)
{
    struct value kept = jinja_list_new(r, V_LIST, 0);
    struct scope *inner = scope_new(r, scope);
    for (int64_t i = 0; i < items->n; i++) {
        inner->vars.n = 0;
        target_set(r, s->target, items->v[i], inner);
        if (jinja_true(r, expr_eval(r, s->filter, inner)))
            jinja_list_push(r, kept.list, items->v[i]);
    }
    return kept.list;
}

static void for_exec(struct render *r, const struct stmt *s, struct scope *scope)
{
    struct list *items = jinja_items(r, expr_eval(r, s->expr, scope));
    if (s->filter)
        items = items_filter(r, s, items, scope);
    struct loop *loop = jinja_pool_take(&r->fail, sizeof *loop);
    struct scope *inner = scope_new(r, scope);
    loop->items = items;
    for (int64_t i = 0; i < items->n; i++) {
        loop->index0 = i;
        inner->vars.n = 0;
        jinja_dict_set(r, &inner->vars, jinja_str("loop", 4), (struct value){ .kind = V_LOOP, .loop = loop });
        target_set(r, s->target, items->v[i], inner);
        if (stmts_exec(r, s->body, inner) == FLOW_BREAK)
            break;
    }
    if (items->n == 0 && s->other)
        stmts_exec(r, s->other, scope_new(r, scope));
}

static void set_block_exec(struct render *r, const struct stmt *s, struct scope *scope)
{
    struct buf *outer = r->out, *inner = jinja_temp_new(r);
    struct scope *own = scope_new(r, scope);    // of the filters too
    r->out = inner;
    stmts_exec(r, s->body, own);
    struct value v = s->expr ? expr_eval(r, s->expr, own) : jinja_from_buf(r, inner);
    r->out = outer;
    target_set(r, s->target, v, scope);
}

/* The text that a block gives: jinja2 joins what its statements give, and only strings can be joined. */
static struct str block_text(struct render *r, struct value v)
{
    if (v.kind != V_STR)
        jinja_fail_set(&r->fail, ERR_DATA, "a block gives a %s, not text", jinja_type(&v));
    return v.s;
}

static struct str filter_exec(struct render *r, const struct stmt *s, struct scope *scope)
{
    struct buf *outer = r->out, *inner = jinja_temp_new(r);
    struct scope *own = scope_new(r, scope);
    r->out = inner;
    stmts_exec(r, s->body, own);
    struct value v = expr_eval(r, s->expr, own);
    r->out = outer;
    return block_text(r, v);
}

static struct str call_exec(struct render *r, const struct stmt *s, struct scope *scope)
{
    struct value f = expr_eval(r, s->expr->a, scope);
    struct args a = args_eval(r, s->expr, scope);
    struct macro *m = jinja_pool_take(&r->fail, sizeof *m);
    *m = (struct macro){ .def = s, .scope = scope };
    for (int i = 0; i < a.n_kw; i++)
        if (jinja_str_is(a.kw[i].name, "caller"))
            jinja_fail_set(&r->fail, ERR_DATA, "a call block's call has a 'caller' of its own");
    a.kw[a.n_kw++] = (struct keyword){ { "caller", 6 }, (struct value){ .kind = V_MACRO, .macro = m } };
    r->fail.line = s->expr->line;
    return block_text(r, jinja_call(r, f, &a));
}

static void text_out(struct render *r, struct str s)
{
    render_step(r, (int64_t)(s.len / 64));
    if (r->out->len + s.len > RENDER_OUTPUT_MAX || !buf_add(r->out, s.p, s.len))
        jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
}

static enum flow stmts_exec(struct render *r, const struct stmt *s, struct scope *scope)
{
    deeper(r);
    enum flow flow = FLOW_ON;
    for (; s && flow == FLOW_ON; s = s->next) {
        render_step(r, 1);
        r->fail.line = s->line;
        switch (s->kind) {
        case S_TEXT: text_out(r, s->text); break;
        case S_OUTPUT: jinja_print(r, r->out, expr_eval(r, s->expr, scope)); break;
        case S_IF:
            if (jinja_true(r, expr_eval(r, s->expr, scope)))
                flow = stmts_exec(r, s->body, scope);
            else if (s->other)
                flow = stmts_exec(r, s->other, scope);
            break;
        case S_FOR: for_exec(r, s, scope); break;
        case S_SET: target_set(r, s->target, expr_eval(r, s->expr, scope), scope); break;
        case S_SET_BLOCK: set_block_exec(r, s, scope); break;
        case S_MACRO: {
            struct macro *m = jinja_pool_take(&r->fail, sizeof *m);
            *m = (struct macro){ .def = s, .scope = scope };
            jinja_dict_set(r, &scope->vars, jinja_str(s->text.p, s->text.len), (struct value){ .kind = V_MACRO, .macro = m });
            break;
        }
        case S_SCOPE: stmts_exec(r, s->body, scope_new(r, scope)); break;
        case S_FILTER: text_out(r, filter_exec(r, s, scope)); break;
        case S_CALL: text_out(r, call_exec(r, s, scope)); break;
        case S_BREAK: flow = FLOW_BREAK; break;
        case S_CONTINUE: flow = FLOW_CONTINUE; break;
        }
    }
    r->depth--;
    return flow;
}

void jinja_stmts_run(struct render *r, const struct stmt *s, struct scope *scope)
{
    stmts_exec(r, s, scope);
}

/* ---- the public side ---- */

/* As in transformers, a template for tools is used where they are given, if only as an empty list. */
static const struct template *template_for(const struct template *t, const json_t *variables)
{
    const json_t *tools = json_object_get(variables, "tools");
    return t->tool_use && tools && !json_is_null(tools) ? t->tool_use : t;
}

bool template_render(const struct template *t, const json_t *variables, double now_s, struct buf *out, struct error *err)
{
    struct render *r = calloc(1, sizeof *r);
    volatile bool ok = false;
    if (!r)
        return error_set(err, ERR_NO_MEMORY, "no memory to render a template");
    *r = (struct render){ .fail = { .err = err, .line = 1 }, .t = template_for(t, variables), .out = &r->text, .now_s = now_s };
    r->fail.name = r->t->name;
    r->text.max = RENDER_OUTPUT_MAX + 4096;
    r->pool.max = RENDER_BYTES_MAX;
    r->fail.pool = &r->pool;
    if (!setjmp(r->fail.at)) {
        const json_t *sources[] = { r->t->tokens, variables };    // the later one wins
        struct scope *given = scope_new(r, NULL);
        for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
            if (!sources[i])
                continue;
            struct value d = jinja_from_json(r, sources[i], 0);
            if (d.kind != V_DICT)
                jinja_fail_set(&r->fail, ERR_DATA, "the variables are not an object");
            for (int64_t k = 0; k < d.dict->n; k++)
                jinja_dict_set(r, &given->vars, d.dict->key[k], d.dict->value[k]);
        }
        jinja_stmts_run(r, r->t->body, scope_new(r, given));
        ok = buf_add(out, buf_text(&r->text), r->text.len) || error_set(err, ERR_FULL, "%s: no room for the text", r->t->name);
    }
    for (struct temp *b = r->temps; b; b = b->next)
        buf_release(&b->b);
    json_decref(r->held);
    jinja_pool_release(&r->pool);
    buf_release(&r->text);
    free(r);
    return ok;
}

struct template *template_new(const char *source, size_t len, const char *name, struct error *err)
{
    struct template *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) {
        free(t);
        error_set(err, ERR_NO_MEMORY, "no memory for a template");
        return NULL;
    }
    if (template_parse(t, source, len, err))
        return t;
    template_free(t);
    return NULL;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    template_free(t->tool_use);
    jinja_pool_release(&t->pool);
    json_decref(t->tokens);
    free(t->name);
    free(t);
}
