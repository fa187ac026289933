/* atom.c - what operators join: numbers, names, functions, groups; command.c has the rest */
#include "workers/engine/reward/math/parser.h"

bool parser_deeper(struct parser *p)
{
    if (++p->depth <= MATH_DEPTH_MAX)
        return true;
    p->m->why = "too deep";
    parser_fail(p);
    return false;
}

struct math_node *number_node(struct parser *p)
{
    struct math_token t = p->t;
    struct math_node *a = node_new(p->m, K_NUM, 0);
    if (!a)
        return parser_fail(p);
    a->s = t.s;
    a->len = t.len;
    a->scale = t.scale;
    a->flags |= t.decimal && t.repeat == 0 ? HAS_DECIMAL : 0;
    for (; a->len > 1 && *a->s == '0'; a->len--) {
        a->s++;
        a->op = 1;
    }
    if (a->len <= 18)
        for (int i = 0; i < a->len; i++)
            a->small = a->small * 10 + (a->s[i] - '0');
    token_take(p);
    if (t.repeat > 0) {    // (all digits - those that do not repeat) / (10^scale - 10^(scale - repeat))
        if (t.len > 18)
            return parser_fail(p);
        int64_t whole = a->small, head = whole, den = 1, shift = 1;
        for (int i = 0; i < t.repeat; i++)
            head /= 10, den *= 10;
        for (int i = t.repeat; i < t.scale; i++)
            shift *= 10;
        return node_new(p->m, K_DIV, 2, node_int(p->m, whole - head), node_int(p->m, (den - 1) * shift));
    }
    if (is_class(p, C_DOTS) && t.decimal)    // 0.333... is its digits
        token_take(p);
    return a;
}

/* The text of a subscript without braces and spaces; p is after the '_'. */
static bool subscript_take(struct parser *p, const char **s, size_t *len)
{
    const char *q = space_skip(p->p, p->end), *from, *to;
    if (q >= p->end)
        return false;
    if (*q == '{') {
        if (!group_find(q, p->end, &from, &to))
            return false;
        p->p = to + 1;
    } else {
        from = q;
        to = q + 1;
        if (*q == '\\')
            while (to < p->end && is_letter(*to))
                to++;
        else
            while (to < p->end && is_digit(*q) && is_digit(*to))
                to++;
        p->p = to;
    }
    char *out = math_take(p->m, (size_t)(to - from) + 1);
    if (!out)
        return false;
    size_t n = 0;
    for (q = from; q < to; q++) {
        if (starts(q, to, "\\text"))
            q += 4;
        else if (starts(q, to, "\\mathrm"))
            q += 6;
        else if (*q != ' ' && *q != '{' && *q != '}')
            out[n++] = *q;
    }
    *s = out;
    *len = n;
    token_next(p);
    return true;
}

struct math_node *symbol_node(struct parser *p, const char *s, size_t len)
{
    for (;;) {
        const char *sub;
        size_t n = 0;
        bool under = is_char(p, '_');
        if (!under && !(is_char(p, '\'') && !p->t.space))
            break;
        p->p = p->t.end;
        if (under) {
            if (!subscript_take(p, &sub, &n))
                return parser_fail(p);
        } else {
            sub = "'";
            n = 1;
            token_next(p);
        }
        char *name = math_take(p->m, len + n + 2);
        if (!name)
            return parser_fail(p);
        memcpy(name, s, len);
        if (under)
            name[len] = '_';
        memcpy(name + len + under, sub, n);
        s = name;
        len += n + under;
    }
    return node_named(p->m, K_SYM, s, len);
}

struct math_node *argument_parse(struct parser *p, bool one_digit)
{
    struct math_node *a = NULL;
    if (is_char(p, '{')) {
        if (!parser_deeper(p))
            return NULL;
        token_take(p);
        a = is_char(p, '}') ? NULL : list_parse(p);
        p->depth--;
        if (!a || !char_take(p, '}'))
            return parser_fail(p);
        return a;
    }
    if (one_digit && p->t.kind == T_NUM && p->t.s >= p->p && p->t.s < p->end && p->t.len > 1) {
        a = node_int(p->m, p->t.s[0] - '0');
        p->p = p->t.s + 1;
        token_next(p);
        return a;
    }
    if (!parser_deeper(p))
        return NULL;
    if (is_char(p, '-')) {
        token_take(p);
        a = node_new(p->m, K_NEG, 1, atom_parse(p));
    } else {
        a = atom_parse(p);
    }
    p->depth--;
    return a;
}

static bool is_function(const struct parser *p)
{
    return is_class(p, C_FUNC) || is_class(p, C_SUM) || is_class(p, C_OPAQUE);
}

bool starts_factor(const struct parser *p)
{
    switch (p->t.kind) {
    case T_NUM:
    case T_WORD:
    case T_TEXT: return true;
    case T_CHAR: return p->t.c == '(' || p->t.c == '{' || p->t.c == '[' || (p->t.c == '|' && p->abs_depth == 0 && !p->no_bar);
    case T_CMD:
        if (!p->t.cmd)
            return true;
        switch ((enum cmd_class)p->t.cmd->class) {
        case C_SYM:
        case C_CONST:
        case C_FRAC:
        case C_BINOM:
        case C_SQRT:
        case C_FUNC:
        case C_FONT:
        case C_ACCENT:
        case C_MARK:
        case C_OPEN:
        case C_BOX:
        case C_NUMERAL:
        case C_SUM:
        case C_OPAQUE:
        case C_OPNAME:
        case C_BB:
        case C_EMPTYSET: return true;
        case C_BEGIN: return true;
        default: return false;
        }
    case T_END:
    case T_REL:
    case T_BAD: return false;
    }
    return false;
}

static struct math_node *func_args(struct parser *p, enum math_func fn)
{
    struct math_node *arg;
    if (is_char(p, '(') || is_char(p, '{') || is_char(p, '[')) {
        char close = p->t.c == '(' ? ')' : p->t.c == '[' ? ']' : '}';
        if (!parser_deeper(p))
            return NULL;
        int abs_depth = p->abs_depth;
        p->abs_depth = 0;
        token_take(p);
        arg = list_parse(p);
        p->abs_depth = abs_depth;
        p->depth--;
        if (!arg || !char_take(p, close))
            return parser_fail(p);
        if (arg->kind == K_LIST)
            return node_op(node_list(p->m, K_FUNC, arg->child, arg->n), fn);
        /* only the group is the argument: \sin(x)^2 is a power of the value, \sin(x)y a product */
    } else {
        bool minus = is_char(p, '-');
        if (minus)
            token_take(p);
        if (!starts_factor(p) && !is_function(p))
            return parser_fail(p);
        if (!parser_deeper(p))
            return NULL;
        struct math_node *part[32];
        int n = 0;
        bool was = p->in_func;
        p->in_func = true;
        do
            part[n++] = factor_parse(p);
        while (n < 32 && part[n - 1] && starts_factor(p) && !is_function(p) && !is_char(p, '(') && p->t.kind != T_TEXT);
        p->in_func = was;
        p->depth--;
        if (!part[n - 1])
            return NULL;
        arg = n == 1 ? part[0] : node_list(p->m, K_MUL, part, n);
        if (minus)
            arg = node_new(p->m, K_NEG, 1, arg);
    }
    return node_op(node_new(p->m, K_FUNC, 1, arg), fn);
}

static int func_inverse(int fn)
{
    return fn >= FN_SIN && fn <= FN_CSC ? fn + (FN_ASIN - FN_SIN) : fn >= FN_SINH && fn <= FN_TANH ? fn + (FN_ASINH - FN_SINH) : -1;
}

struct math_node *func_parse(struct parser *p, int fn)
{
    struct math_node *power = NULL, *base = NULL, *a;
    token_take(p);
    for (;;) {
        if (is_char(p, '^') && !power) {
            token_take(p);
            power = argument_parse(p, false);
            if (!power)
                return parser_fail(p);
        } else if (is_char(p, '_') && !base && (fn == FN_LOG || fn == FN_LN)) {
            token_take(p);
            base = argument_parse(p, true);
            if (!base)
                return parser_fail(p);
        } else {
            break;
        }
    }
    if (fn == FN_GAMMA && !is_char(p, '('))
        return node_const(p->m, CONST_GAMMA);
    if (power && power->kind == K_NEG && node_is(power->child[0], K_NUM) && power->child[0]->small == 1 && func_inverse(fn) >= 0) {
        fn = func_inverse(fn);
        power = NULL;
    }
    a = func_args(p, (enum math_func)fn);
    if (!a)
        return parser_fail(p);
    if (fn == FN_LOG) {
        if (a->n != 1)
            return parser_fail(p);
        a = node_new(p->m, K_LOG, 2, a->child[0], base ? base : node_int(p->m, 10));
    } else if (fn == FN_SQRT) {
        a = node_new(p->m, K_ROOT, 2, a->child[0], node_int(p->m, 2));
    } else {
        bool exact = fn == FN_ABS || fn == FN_FLOOR || fn == FN_CEIL || fn >= FN_FACT;
        if (!exact || fn == FN_GAMMA || fn == FN_ARG)
            a->flags |= HAS_TRANS;
        bool many = fn == FN_GCD || fn == FN_LCM || fn == FN_MAX || fn == FN_MIN;
        if (a->n != 1 && !many)
            return parser_fail(p);
    }
    return power ? node_new(p->m, K_POW, 2, a, power) : a;
}

/* Do plain braces hold a letter in a set, and then a condition: {x \in N : x < 5}? */
static bool builder_follows(const struct parser *p)
{
    const char *from, *to;
    if (!group_find(p->t.s, p->end, &from, &to))
        return false;
    size_t len = (size_t)(to - from);
    const char *in = memmem(from, len, "\\in ", 4), *sign = memmem(from, len, "∈", strlen("∈"));
    in = in ? in : sign;
    return in && condition_follows(in, to);
}

struct math_node *bracket_parse(struct parser *p, char open)
{
    int abs_depth = p->abs_depth;
    bool matrix = p->in_matrix, no_bar = p->no_bar, in_func = p->in_func;
    if (!parser_deeper(p))
        return NULL;
    p->abs_depth = 0;
    p->in_matrix = p->in_func = false;
    bool builder = open == '{' || (open == 'b' && builder_follows(p));    // also with plain braces
    p->no_bar = builder;
    token_take(p);
    struct math_node *a = NULL;
    bool empty = false;
    if (open == '{' ? is_class(p, C_CLOSE) && p->t.cmd->arg == '}' : open == 'b' && is_char(p, '}'))
        empty = true;
    else
        a = list_parse(p);
    p->depth--;
    p->abs_depth = abs_depth;
    p->in_matrix = matrix;
    p->no_bar = no_bar;
    p->in_func = in_func;
    if (!a && !empty)
        return parser_fail(p);
    switch (open) {
    case '(':
    case '[': {
        if (!is_char(p, ')') && !is_char(p, ']'))
            return parser_fail(p);
        bool square = is_char(p, ']');
        token_take(p);
        if (a->kind != K_LIST)
            return (open == '[') == square ? a : parser_fail(p);
        return node_op(node_list(p->m, K_TUPLE, a->child, a->n), (open == '[') | square << 1);
    }
    case 'b':    // a brace that only groups: {1,2} without backslashes is a set too
        if (empty)
            return parser_fail(p);
        /* fall through */
    case '{': {
        if (builder && a && (is_char(p, '|') || is_char(p, ':'))) {    // { x | x > 2 }
            token_take(p);
            if (!parser_deeper(p))
                return NULL;
            struct math_node *cond = list_parse(p);
            p->depth--;
            a = cond ? node_new(p->m, K_BUILDER, 2, a, cond) : NULL;
            if (!a)
                return parser_fail(p);
        }
        bool closed = is_char(p, '}') || (is_class(p, C_CLOSE) && p->t.cmd->arg == '}');
        if (!closed)
            return parser_fail(p);
        token_take(p);
        if (empty)
            return node_op(node_new(p->m, K_NAMED_SET, 0), '0');
        if (a->kind == K_BUILDER)
            return a;
        if (a->kind == K_LIST)
            return node_list(p->m, K_SET, a->child, a->n);
        return open == '{' ? node_new(p->m, K_SET, 1, a) : a;
    }
    case 'f':
    case 'c':
    case '<':
        if (!is_class(p, C_CLOSE) || p->t.cmd->arg != (open == '<' ? '>' : open))
            return parser_fail(p);
        token_take(p);
        if (open == '<')
            return a->kind == K_LIST ? node_list(p->m, K_TUPLE, a->child, a->n) : a;
        return node_op(node_new(p->m, K_FUNC, 1, a), open == 'f' ? FN_FLOOR : FN_CEIL);
    }
    return parser_fail(p);
}

static struct math_node *abs_parse(struct parser *p)
{
    if (!parser_deeper(p))
        return NULL;
    int abs_depth = p->abs_depth;
    p->abs_depth = 1;
    token_take(p);
    struct math_node *a = sum_parse(p);
    p->abs_depth = abs_depth;
    p->depth--;
    if (!a || !is_char(p, '|'))
        return parser_fail(p);
    p->abs_depth = abs_depth;
    token_take(p);
    return node_op(node_new(p->m, K_FUNC, 1, a), FN_ABS);
}

/* When only words follow from s to the end of the text or a comma: their length in bytes; 0 otherwise. */
static size_t words_len(const struct parser *p, const char *s)
{
    const char *q = s, *last = s;
    bool longer = false;
    while (q < p->end) {
        const char *w = q;
        size_t run = 0, longest = 0;    // letters: a-b-c is no word
        for (; q < p->end && (is_letter(*q) || *q == '\'' || *q == '-'); q++) {
            run = is_letter(*q) ? run + 1 : 0;
            longest = MAX(longest, run);
        }
        if (q == w)
            break;
        if (word_is(w, (size_t)(q - w), "and") || word_is(w, (size_t)(q - w), "or"))
            break;
        longer |= q - w >= 4 && longest >= 3;
        last = q;
        if (q < p->end && *q == '.')
            q++;
        q = space_skip(q, p->end);
    }
    bool ends = q >= p->end || *q == ',' || *q == ';' || *q == ')' || *q == '}' || (q + 1 < p->end && q[0] == '\\' && q[1] == '\\');
    return ends && longer ? (size_t)(last - s) : 0;
}

struct math_node *sub_parse(struct parser *p, const char *s, size_t len)
{
    struct parser sub = { .m = p->m, .p = s, .start = s, .end = s + len, .depth = p->depth, .nest = p->nest, .n_index = p->n_index };
    memcpy(sub.index, p->index, sizeof sub.index);
    if (!parser_deeper(&sub))
        return parser_fail(p);
    token_next(&sub);
    struct math_node *a = list_parse(&sub);
    return a && !sub.failed && sub.t.kind == T_END ? a : NULL;
}

/* Words; those that name a set are that set. */
static struct math_node *text_node(struct parser *p, const char *s, size_t len)
{
    static const char *const reals[] = { "all real numbers", "real numbers", "all reals", "the set of all real numbers",
                                         "the real numbers" };
    for (size_t i = 0; i < ARRAY_SIZE(reals); i++)
        if (word_is(s, len, reals[i]))
            return node_op(node_new(p->m, K_NAMED_SET, 0), 'R');
    struct span limit;
    if (no_solution(s, len, &limit)) {
        struct math_node *empty = node_named(p->m, K_NAMED_SET, limit.len > 0 ? limit.s : "", limit.len);
        return node_op(empty, '0');
    }
    static const char *const none[] = { "DNE", "D.N.E", "doesn't exist", "does not exist", "the limit does not exist" };
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        if (word_is(s, len, none[i]))
            return node_named(p->m, K_TEXT, "DNE", 3);
    return node_named(p->m, K_TEXT, s, len);
}

bool paren_follows(const struct parser *p)
{
    static const char *const sizes[] = { "\\left", "\\big", "\\Big", "\\bigl", "\\Bigl", "\\bigg", "\\Bigg", "\\!" };
    if (!is_char(p, '('))
        return false;
    const char *q = p->t.s;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        size_t n = strlen(sizes[i]);
        if ((size_t)(q - p->start) >= n && memcmp(q - n, sizes[i], n) == 0) {
            q -= n;
            i = (size_t)-1;
        }
    }
    return q > p->start && !strchr(" \t\r\n~", q[-1]);
}

bool binder_follows(const struct parser *p)
{
    if (!is_char(p, '(') || p->depth > 0)
        return false;
    const char *q = space_skip(p->t.end, p->end), *close = q < p->end ? memchr(q, ')', (size_t)(p->end - q)) : NULL;
    if (!close || !is_letter(*q))
        return false;
    const char *in = memmem(q, (size_t)(close - q), "\\in", 3);
    return (in && in + 3 < close && !is_letter(in[3])) || memmem(q, (size_t)(close - q), "∈", strlen("∈"));
}

/* One word of letters: a function, a constant, a name such as AB, words of text, or letters one by one. */
static struct math_node *word_parse(struct parser *p)
{
    struct math_token t = p->t;
    const struct math_command *c = t.len >= 2 ? math_command_find(p->m, t.s, (size_t)t.len) : NULL;
    if (c && c->class == C_FUNC && c->arg != FN_GAMMA && t.s[0] >= 'a' && c->arg != FN_ARG)
        return func_parse(p, c->arg);
    if (c && (c->class == C_CONST) && strncmp(t.s, "imath", 5) != 0) {
        token_take(p);
        return node_const(p->m, (enum math_const)c->arg);
    }
    if (c && c->class == C_SQRT) {
        token_take(p);
        struct math_node *a = argument_parse(p, false);
        return node_new(p->m, K_ROOT, 2, a, node_int(p->m, 2));
    }
    if (c && c->class == C_SYM && t.len >= 3) {
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    if (word_is(t.s, (size_t)t.len, "infinity")) {
        token_take(p);
        return node_const(p->m, CONST_INF);
    }
    size_t words = t.end == t.s + t.len ? words_len(p, t.s) : 0;
    if (words > 0) {
        p->p = t.s + words;
        token_next(p);
        return text_node(p, t.s, words);
    }
    bool upper = t.len >= 2 && t.len <= 5;
    for (int i = 0; i < t.len; i++)
        upper &= t.s[i] >= 'A' && t.s[i] <= 'Z';
    if (upper) {
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    if (t.len >= 4)    // sinx, cosx, lnx; else a word where no word can be
        for (int n = 4; n >= 3; n--) {
            const struct math_command *f = math_command_find(p->m, t.s, (size_t)n);
            if (f && f->class == C_FUNC && t.len - n <= 2 && t.len > n) {
                p->t.end = t.s + n;
                return func_parse(p, f->arg);
            }
        }
    p->p = t.end == t.s + t.len ? t.s + 1 : t.end;    // \mathrm{e} ends after its brace
    token_next(p);
    bool is_index = memchr(p->index, t.s[0], (size_t)p->n_index) != NULL;
    if (t.s[0] == 'e' && !is_char(p, '_') && !is_index)
        return node_const(p->m, CONST_E);
    if (t.s[0] == 'i' && !is_char(p, '_') && !is_index)
        return node_const(p->m, CONST_I);
    bool apply = strchr(FUNCTION_LETTERS, t.s[0]) != NULL;
    static const char *const inverse[] = { "^{-1}(", "^{-1}\\left(", "^{-1} (" };
    for (size_t i = 0; apply && i < ARRAY_SIZE(inverse); i++)    // f^{-1}(x) is a separate function
        if (starts(p->p, p->end, inverse[i])) {
            char *name = math_take(p->m, 8);
            if (!name)
                return parser_fail(p);
            memcpy(name, t.s, 1);
            memcpy(name + 1, "^-1", 3);
            p->p += 5;
            token_next(p);
            p->t.space = false;
            struct math_node *arg = is_char(p, '(') ? bracket_parse(p, '(') : NULL;
            struct math_node *f = arg ? node_new(p->m, K_APP, 1, arg) : NULL;
            if (!f)
                return parser_fail(p);
            f->s = name;
            f->len = 4;
            return f;
        }
    struct math_node *sym = symbol_node(p, t.s, 1);
    if (sym && t.s[0] == 'C' && sym->len == 1 && paren_follows(p)) {    // C(10,3); C(x+1) is a product
        struct math_node *arg = bracket_parse(p, '(');
        if (!arg)
            return parser_fail(p);
        return arg->kind == K_TUPLE && arg->n == 2 && arg->op == 0
                   ? node_op(node_new(p->m, K_FUNC, 2, arg->child[0], arg->child[1]), FN_BINOM)
                   : node_new(p->m, K_MUL, 2, sym, arg);
    }
    return sym;
}

struct math_node *atom_parse(struct parser *p)
{
    struct math_token t = p->t;
    if (p->failed || p->m->out_of_memory)
        return parser_fail(p);
    switch (t.kind) {
    case T_NUM: {
        struct math_node *a = number_node(p);
        if (a && is_char(p, '_')) {
            const char *sub;
            size_t n = 0;
            p->p = p->t.end;
            if (!subscript_take(p, &sub, &n) || n == 0 || n > 2)
                return parser_fail(p);
            for (size_t i = 0; i < n; i++)
                if (is_digit(sub[i]))
                    a->base = a->base * 10 + (sub[i] - '0');
        }
        return a;
    }
    case T_WORD: return word_parse(p);
    case T_TEXT: {
        bool list = memchr(t.s, ',', (size_t)t.len) != NULL;    // \text{Navin, Luisa}
        struct math_node *a = t.len > 0 && (list || is_digit(*t.s) || *t.s == '(' || *t.s == '$' || *t.s == '-' || *t.s == '\\')
                                  ? sub_parse(p, t.s, (size_t)t.len)
                                  : NULL;
        p->failed = false;    // anything inside that is not mathematics is text
        token_take(p);
        return a ? a : text_node(p, t.s, (size_t)t.len);
    }
    case T_CMD: return math_command_parse(p);
    case T_CHAR:
        if (t.c == '(' || t.c == '[')
            return bracket_parse(p, t.c);
        if (t.c == '{')
            return bracket_parse(p, 'b');
        if (t.c == '|')
            return abs_parse(p);
        return parser_fail(p);
    case T_END:
    case T_REL:
    case T_BAD: break;
    }
    return parser_fail(p);
}
