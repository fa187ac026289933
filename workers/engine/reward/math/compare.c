/* compare.c - what it means for two answers to be the same: lists, tuples, sets, relations, matrices, and scalars at
 * the end
 *
 * The relation is symmetric. Sets are compared without order; so are lists, but each element counts as often as it
 * occurs; a tuple or a list of named values is compared with a bare list in written order. "x = 5" is 5 for a side that
 * names nothing; an equation between two numbers is either of them when it is true and nothing when it is false; an
 * inequality in one unknown is its set of solutions; letters bound to a set are named by their places; a percentage
 * means its number and also a hundredth of it; a unit counts only when both sides have known ones. */
#include "workers/engine/reward/math/compare.h"
#include <string.h>
#include <strings.h>

static const char WHY_ZERO[] = "0 may be a natural number";

/* The tree with every plus-minus resolved: sign +1 takes the upper signs. */
static struct math_node *decide_sign(struct math *m, struct math_node *a, int sign)
{
    if (!(a->flags & HAS_PM))
        return a;
    struct math_node *child[ELEMENTS_MAX * 2];
    if (a->n > (int)ARRAY_SIZE(child))
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(child[i] = decide_sign(m, a->child[i], sign)))
            return NULL;
    if (a->kind == K_PM)
        return a->op * sign > 0 ? child[0] : node_new(m, K_NEG, 1, child[0]);
    struct math_node *c = node_like(m, a, (enum node_kind)a->kind, child);
    if (c)
        c->flags &= (uint16_t)~HAS_PM;
    return c;
}

struct math_node *node_substitute(struct math *m, struct math_node *a, const struct math_node *name, struct math_node *with)
{
    if (a->kind == K_SYM && name_same(a, name))
        return with;
    struct math_node *child[ELEMENTS_MAX * 2];
    if (a->n == 0 || !(a->flags & HAS_SYM))
        return a;
    if (a->n > (int)ARRAY_SIZE(child))
        return NULL;
    bool same = true;
    for (int i = 0; i < a->n; i++) {
        if (!(child[i] = node_substitute(m, a->child[i], name, with)))
            return NULL;
        same &= child[i] == a->child[i];
    }
    return same ? a : node_like(m, a, (enum node_kind)a->kind, child);
}

static bool is_list(const struct math_node *a)
{
    return a->kind == K_LIST || a->kind == K_SET;
}

/* ---- lists ---- */

static enum tri unordered(struct math *m, struct math_node **a, int na, struct math_node **b, int nb, const char **rule, int depth)
{
    bool unknown = false;
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < (way ? nb : na); i++) {
            enum tri best = TRI_NO;
            for (int j = 0; j < (way ? na : nb) && best != TRI_YES; j++) {
                int k = (i + j) % (way ? na : nb);    // written in the same order, most often
                best = tri_either(best, way ? tree_compare(m, a[k], b[i], rule, depth + 1) : tree_compare(m, a[i], b[k], rule, depth + 1));
            }
            if (best == TRI_NO)
                return TRI_NO;
            unknown |= best == TRI_UNKNOWN;
        }
    return unknown ? TRI_UNKNOWN : TRI_YES;
}

struct matching {
    struct math *m;
    struct math_node **a, **b;
    int n, depth;
    const char **rule;
    int8_t *known;       // (n, n) enum tri + 1 of a[i] and b[j]; 0: not compared yet
    int16_t *partner;    // (n) of b[j], -1: none
    bool *seen;          // (n) b[j] in this search
};

static bool partner_find(struct matching *s, int i, bool unknown)
{
    for (int k = 0; k < s->n; k++) {
        int j = (i + k) % s->n;    // written in the same order, most often
        if (s->seen[j])
            continue;
        int8_t *t = &s->known[i * s->n + j];
        if (*t == 0)
            *t = (int8_t)(tree_compare(s->m, s->a[i], s->b[j], s->rule, s->depth + 1) + 1);
        if (*t != TRI_YES + 1 && !(unknown && *t == TRI_UNKNOWN + 1))
            continue;
        s->seen[j] = true;
        if (s->partner[j] < 0 || partner_find(s, s->partner[j], unknown)) {
            s->partner[j] = (int16_t)i;
            return true;
        }
    }
    return false;
}

/* Can each element of a be paired with a different one of b? 1, 1, 2 is not 1, 2, 2. A largest matching (Kuhn's), so that the
 * order does not count where two numbers both equal a third but not each other. */
static enum tri matched(struct math *m, struct math_node **a, struct math_node **b, int n, const char **rule, int depth)
{
    struct matching s = { .m = m, .a = a, .b = b, .n = n, .depth = depth, .rule = rule };
    s.known = math_take(m, (size_t)n * (size_t)n + 1);
    s.partner = math_take(m, (size_t)n * sizeof *s.partner + 1);
    s.seen = math_take(m, (size_t)n * sizeof *s.seen + 1);
    if (!s.known || !s.partner || !s.seen)
        return TRI_UNKNOWN;
    memset(s.known, 0, (size_t)n * (size_t)n);
    for (int unknown = 0; unknown < 2; unknown++) {
        bool all = true;
        for (int j = 0; j < n; j++)
            s.partner[j] = -1;
        for (int i = 0; i < n && all; i++) {
            memset(s.seen, 0, (size_t)n * sizeof *s.seen);
            all = partner_find(&s, i, unknown);
        }
        if (all)
            return unknown ? TRI_UNKNOWN : TRI_YES;
    }
    return TRI_NO;
}

enum tri ordered_compare(struct math *m, struct math_node **a, struct math_node **b, int n, const char **rule, int depth)
{
    bool unknown = false;
    for (int i = 0; i < n; i++) {
        enum tri t = tree_compare(m, a[i], b[i], rule, depth + 1);
        if (t == TRI_NO)
            return TRI_NO;
        unknown |= t == TRI_UNKNOWN;
    }
    return unknown ? TRI_UNKNOWN : TRI_YES;
}

/* The elements of a list or set, with plus-minus written out and nested lists flattened. */
static int elements(struct math *m, struct math_node *a, struct math_node **out, int max)
{
    if (a->kind == K_LIST && a->op == 0) {
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            int k = elements(m, a->child[i], out + n, max - n);
            if (k < 0)
                return -1;
            n += k;
        }
        return n;
    }
    if (a->kind == K_LIST || a->kind == K_SET) {
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            if (a->child[i]->kind == K_LIST || a->child[i]->kind == K_SET) {
                if (n == max)
                    return -1;
                out[n++] = a->child[i];
                continue;
            }
            int k = elements(m, a->child[i], out + n, max - n);
            if (k < 0)
                return -1;
            n += k;
        }
        return n;
    }
    /* x = {1, 2} and x = 1, 2 */
    if (a->flags & HAS_PM) {
        if (max < 2 || !(out[0] = decide_sign(m, a, 1)) || !(out[1] = decide_sign(m, a, -1)))
            return -1;
        return 2;
    }
    if (max < 1)
        return -1;
    out[0] = a;
    return 1;
}

/* ---- letters that stand for any element of a set ---- */

#define BOUND_MAX 8
struct bound {
    int n;
    struct math_node *set[BOUND_MAX];
};

/* The letter that an element of a list binds: "k in Z", "k is an integer". NULL: it binds none. */
static struct math_node *binder(struct math *m, struct math_node *a, struct math_node **set)
{
    if (a->kind == K_REL && a->len == 1 && a->s[0] == REL_IN && a->child[0]->kind == K_SYM) {
        *set = a->child[1];
        return a->child[0];
    }
    static const char *const integer[] = { "is an integer", "is any integer", "is an arbitrary integer" };
    for (size_t i = 0; i < ARRAY_SIZE(integer) && a->kind == K_UNIT && a->child[0]->kind == K_SYM; i++)
        if ((size_t)a->len == strlen(integer[i]) && memcmp(a->s, integer[i], (size_t)a->len) == 0) {
            *set = node_new(m, K_NAMED_SET, 0);
            if (*set)
                (*set)->op = 'Z';
            return *set ? a->child[0] : NULL;
        }
    return NULL;
}

static struct math_node *place_name(struct math *m, int i)    // a name that no text can contain
{
    static const char place[BOUND_MAX] = "\16\17\20\21\22\23\24\25";
    struct math_node *a = node_new(m, K_SYM, 0);
    if (a) {
        a->s = place + i;
        a->len = 1;
    }
    return a;
}

/* Take what binds a letter out of e[0..n) and give the letter the name of its place in the rest, so that "k\pi, k in Z"
 * and "n\pi, n in Z" have the same elements. Returns how many elements are left; -1: no room. */
static int bound_take(struct math *m, struct math_node **e, int n, struct bound *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        struct math_node *set, *name = binder(m, e[i], &set);
        bool used = false;
        for (int k = 0; k < n && name; k++)
            used |= k != i && node_occurs(e[k], name);
        if (!used || out->n == BOUND_MAX)
            continue;
        struct math_node *place = place_name(m, out->n);
        out->set[out->n++] = set;
        memmove(e + i, e + i + 1, (size_t)(--n - i) * sizeof *e);
        i--;
        /* "k, n in Z": single letters right before it are bound to the same set */
        for (int k = 0; k < n; k++)
            if (!place || !(e[k] = node_substitute(m, e[k], name, place)))
                return -1;
        while (i >= 0 && e[i]->kind == K_SYM && (unsigned char)e[i]->s[0] >= ' ' && out->n < BOUND_MAX) {
            struct math_node *also = e[i];
            used = false;
            for (int k = 0; k < i; k++)
                used |= node_occurs(e[k], also);
            if (!used || !(place = place_name(m, out->n)))
                break;
            out->set[out->n++] = set;
            memmove(e + i, e + i + 1, (size_t)(--n - i) * sizeof *e);
            i--;
            for (int k = 0; k < n; k++)
                if (!(e[k] = node_substitute(m, e[k], also, place)))
                    return -1;
        }
    }
    return n;
}

static bool bound_same(struct math *m, const struct bound *a, const struct bound *b, int depth)
{
    const char *rule;
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (tree_compare(m, a->set[i], b->set[i], &rule, depth + 1) != TRI_YES)
            return false;
    return true;
}

/* ---- lists as a whole ---- */

/* x = 1, y = 2: names for the places. */
static bool all_named(struct math_node **e, int n)
{
    for (int i = 0; i < n; i++) {
        if (e[i]->kind != K_REL || e[i]->len != 1 || e[i]->s[0] != REL_EQ || e[i]->child[0]->kind != K_SYM)
            return false;
        for (int k = 0; k < i; k++)
            if (name_same(e[k]->child[0], e[i]->child[0]))
                return false;
    }
    return n > 1;
}

static bool all_tuples(struct math_node **e, int n)
{
    for (int i = 0; i < n; i++)
        if (e[i]->kind != K_TUPLE)
            return false;
    return true;
}

static bool none_named(struct math_node **e, int n)
{
    for (int i = 0; i < n; i++)
        if (e[i]->kind == K_REL)
            return false;
    return true;
}

static bool any_set(struct math_node *const *e, int n)
{
    for (int i = 0; i < n; i++)
        if (e[i]->kind == K_SET)
            return true;
    return false;
}

static enum tri list_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct math_node **ea = math_take(m, sizeof *ea * ELEMENTS_MAX), **eb = math_take(m, sizeof *eb * ELEMENTS_MAX);
    if (!ea || !eb)
        return TRI_UNKNOWN;
    int na = elements(m, a, ea, ELEMENTS_MAX), nb = elements(m, b, eb, ELEMENTS_MAX);
    if (na < 0 || nb < 0) {
        m->why = "too many elements";
        return TRI_UNKNOWN;
    }
    *rule = "set";
    if (a->kind == K_SET && b->kind == K_SET && any_set(ea, na) != any_set(eb, nb))    // {1, {2}} is not {1, 2}
        return TRI_NO;
    struct math_node **fa = math_take(m, sizeof *fa * (size_t)na + 8), **fb = math_take(m, sizeof *fb * (size_t)nb + 8);
    if (!fa || !fb)
        return TRI_UNKNOWN;
    memcpy(fa, ea, sizeof *fa * (size_t)na);
    memcpy(fb, eb, sizeof *fb * (size_t)nb);
    struct bound ba, bb;
    int ra = bound_take(m, fa, na, &ba), rb = bound_take(m, fb, nb, &bb);
    if (ra < 0 || rb < 0)
        return TRI_UNKNOWN;
    if (ba.n > 0 && bound_same(m, &ba, &bb, depth)) {
        ea = fa;
        eb = fb;
        na = ra;
        nb = rb;
    }
    if (na == nb && ((all_named(ea, na) && none_named(eb, nb)) || (all_named(eb, nb) && none_named(ea, na))))
        return ordered_compare(m, ea, eb, na, rule, depth);
    bool points = all_tuples(ea, na) && all_tuples(eb, nb);    // a set, like the values of a plus-minus
    if (a->kind == K_SET || b->kind == K_SET || points || ((a->flags | b->flags) & HAS_PM))
        return unordered(m, ea, na, eb, nb, rule, depth);
    return na == nb ? matched(m, ea, eb, na, rule, depth) : TRI_NO;
}

/* ---- set expressions and tuples ---- */

static bool is_set_tree(const struct math_node *a)
{
    return a->kind == K_UNION || a->kind == K_INTER || a->kind == K_MINUS || a->kind == K_NAMED_SET || a->kind == K_BUILDER;
}

static int union_flat(struct math_node *a, struct math_node **out, int max)
{
    if (a->kind == K_UNION) {
        int n = union_flat(a->child[0], out, max), k = n < 0 ? -1 : union_flat(a->child[1], out + n, max - n);
        return k < 0 ? -1 : n + k;
    }
    if (max < 1)
        return -1;
    out[0] = a;
    return 1;
}

/* The part before the bar, what binds its letters, and the conditions: all with the letters named by their places. */
static int builder_parts(struct math *m, struct math_node *a, struct math_node **part, struct bound *bound)
{
    struct math_node *head = a->child[0];
    int n = 0;
    part[n++] = head;
    if (head->kind == K_REL && head->len == 1 && head->s[0] == REL_IN) {    // { x in R | x > 2 }
        part[0] = head->child[0];
        part[n++] = head;
    }
    int k = elements(m, a->child[1], part + n, ELEMENTS_MAX - n);
    if (k < 0)
        return -1;
    n = bound_take(m, part, n + k, bound);
    if (n < 1 || part[0]->kind != K_SYM || bound->n == BOUND_MAX || (unsigned char)part[0]->s[0] < ' ')
        return n;
    struct math_node *name = part[0], *place = place_name(m, BOUND_MAX - 1);
    for (int i = 0; i < n; i++)
        if (!place || !(part[i] = node_substitute(m, part[i], name, place)))
            return -1;
    return n;
}

static enum tri builder_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct math_node **pa = math_take(m, sizeof *pa * ELEMENTS_MAX), **pb = math_take(m, sizeof *pb * ELEMENTS_MAX);
    struct bound ba, bb;
    int na = pa ? builder_parts(m, a, pa, &ba) : -1, nb = pb ? builder_parts(m, b, pb, &bb) : -1;
    m->why = "sets that could not be compared";
    if (na < 1 || nb < 1)
        return TRI_UNKNOWN;
    enum tri head = tree_compare(m, pa[0], pb[0], rule, depth + 1);
    if (head == TRI_YES && na == nb && bound_same(m, &ba, &bb, depth) && matched(m, pa + 1, pb + 1, na - 1, rule, depth) == TRI_YES)
        return TRI_YES;
    *rule = "set";
    return TRI_UNKNOWN;    // { 2k | k in Z } is { 2k + 2 | k in Z }
}

/* Two empty sets, as signs or as words. "No real solution" does not say that there is no other; a sign may stand for either. */
static enum tri empty_compare(struct math *m, const struct math_node *a, const struct math_node *b)
{
    const struct math_node *words = a->s ? a : b;
    bool both = a->s && b->s, real = !words->s || words->len == 0 || (words->len == 4 && strncasecmp(words->s, "real", 4) == 0);
    if (both ? a->len == b->len && strncasecmp(a->s, b->s, (size_t)a->len) == 0 : real)
        return TRI_YES;
    m->why = "no solution, of another kind";
    return TRI_UNKNOWN;
}

static enum tri set_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct pieces pa, pb;
    *rule = "set";
    if (a->kind == K_NAMED_SET && b->kind == K_NAMED_SET && a->op == '0' && b->op == '0')
        return empty_compare(m, a, b);
    if (a->kind == K_NAMED_SET && b->kind == K_NAMED_SET) {
        bool natural = (a->op == 'N' && strchr("pw", b->op)) || (b->op == 'N' && strchr("pw", a->op));
        m->why = natural ? WHY_ZERO : m->why;
        return a->op == b->op ? TRI_YES : natural ? TRI_UNKNOWN : TRI_NO;
    }
    if (pieces_of(m, a, &pa, 24) && pieces_of(m, b, &pb, 24))
        return pieces_equal(m, &pa, &pb, rule);
    if (a->kind == K_BUILDER && b->kind == K_BUILDER)
        return builder_compare(m, a, b, rule, depth);
    struct math_node *fa[PIECES_MAX], *fb[PIECES_MAX];
    int na = union_flat(a, fa, PIECES_MAX), nb = union_flat(b, fb, PIECES_MAX);
    enum tri t = TRI_NO;
    if (na >= 1 && nb >= 1 && (na > 1 || nb > 1) && (a->kind == K_UNION || b->kind == K_UNION))
        t = unordered(m, fa, na, fb, nb, rule, depth);
    else if (a->kind == b->kind && a->n == b->n)
        t = ordered_compare(m, a->child, b->child, a->n, rule, depth);
    if (t != TRI_NO)
        return t;
    bool sets = (is_set_tree(a) || is_list(a)) && (is_set_tree(b) || is_list(b));
    if (sets && (a->kind == K_BUILDER || b->kind == K_BUILDER)) {    // { x | x^2 = 4 }
        m->why = "sets that could not be compared";
        return TRI_UNKNOWN;
    }
    bool symbols = ((a->flags | b->flags) & HAS_SYM) || a->kind == K_NAMED_SET || b->kind == K_NAMED_SET;
    if (!symbols)
        return TRI_NO;
    if (!is_set_tree(a) || !is_set_tree(b) || a->kind == K_NAMED_SET || b->kind == K_NAMED_SET)
        return TRI_NO;
    m->why = "sets that could not be compared";
    return TRI_UNKNOWN;
}

/* ---- sets of whole numbers between bounds ---- */

#define LISTED_MAX 100    // elements

/* The first (low) or last whole number of a piece, from its end there. */
static bool end_whole(struct math *m, struct math_node *end, bool open, bool low, int64_t *v)
{
    fmpq_t q;
    fmpq_init(q);
    bool up = low != open;    // a closed end is rounded inwards, an open one outwards and then moved inwards by 1
    bool ok = end && eval_rational(m, node_op(node_new(m, K_FUNC, 1, end), up ? FN_CEIL : FN_FLOOR), q)
              && int_get(q, -1000000000, 1000000000, v);
    fmpq_clear(q);
    *v += ok && open ? low ? 1 : -1 : 0;
    return ok;
}

/* { x in Z | 0 < x < 5 }, { 2k | k in N, k < 4 } with all their elements written out; *without: without what 0 gives, where only some count
 * it among the natural numbers; else the same. False: a is no such set. */
static bool builder_list(struct math *m, struct math_node *a, struct math_node **with, struct math_node **without)
{
    struct math_node *part[ELEMENTS_MAX], *element[LISTED_MAX];
    struct bound bound;
    struct pieces all = { .n = 1, .p = { { .lo_open = true, .hi_open = true } } }, one;
    const struct math_node *u;
    int n = a->kind == K_BUILDER ? builder_parts(m, a, part, &bound) : 0, n_element = 0, zero = -1;
    if (n < 1 || bound.n != 1 || bound.set[0]->kind != K_NAMED_SET || !strchr("ZNpw", bound.set[0]->op))
        return false;
    struct math_node *place = place_name(m, 0);
    int least = bound.set[0]->op == 'p', op = bound.set[0]->op;
    if (!place)
        return false;
    for (int i = 1; i < n; i++)
        if (part[i]->kind != K_REL || !relation_pieces(m, part[i], &one, &u) || u->kind != K_SYM || !name_same(u, place)
            || !pieces_join(m, &all, &one, K_INTER))
            return false;
    if (op != 'Z') {
        one = (struct pieces){ .n = 1, .p = { { .lo = node_int(m, least), .hi_open = true } } };
        if (!one.p[0].lo || !pieces_join(m, &all, &one, K_INTER))
            return false;
    }
    for (int i = 0; i < all.n; i++) {
        int64_t lo, hi;
        if (!end_whole(m, all.p[i].lo, all.p[i].lo_open, true, &lo) || !end_whole(m, all.p[i].hi, all.p[i].hi_open, false, &hi))
            return false;
        for (int64_t k = lo; k <= hi; k++) {
            struct math_node *value = node_int(m, k < 0 ? -k : k);
            value = k < 0 ? node_new(m, K_NEG, 1, value) : value;
            if (n_element == LISTED_MAX || !value || !(value = node_substitute(m, part[0], place, value)))
                return false;
            zero = k == 0 && op == 'N' ? n_element : zero;
            element[n_element++] = value;
        }
    }
    *with = n_element > 0 ? node_list(m, K_SET, element, n_element) : node_op(node_new(m, K_NAMED_SET, 0), '0');
    *without = *with;
    if (zero >= 0) {
        memmove(element + zero, element + zero + 1, (size_t)(n_element - zero - 1) * sizeof *element);
        *without = n_element > 1 ? node_list(m, K_SET, element, n_element - 1) : node_op(node_new(m, K_NAMED_SET, 0), '0');
    }
    return *with && *without;
}

/* Compare with such sets written out. False: neither is one. */
static bool builders_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth, enum tri *out)
{
    struct math_node *wa = a, *oa = a, *wb = b, *ob = b;
    bool la = builder_list(m, a, &wa, &oa), lb = builder_list(m, b, &wb, &ob);
    if (!la && !lb)
        return false;
    *out = tree_compare(m, wa, wb, rule, depth + 1);
    if (wa == oa && wb == ob)
        return true;
    if (tree_compare(m, oa, ob, rule, depth + 1) != *out) {
        m->why = WHY_ZERO;
        *out = TRI_UNKNOWN;
    }
    return true;
}

static enum tri tuple_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    *rule = "tuple";
    if (a->n != b->n)
        return TRI_NO;
    if (a->n == 2 && a->op != b->op) {    // brackets count, but not at an infinite end
        int ia, ib, open = 0;
        for (int i = 0; i < 2; i++)
            open |= node_infinite(a->child[i], &ia) && node_infinite(b->child[i], &ib) ? 1 << i : 0;
        if ((a->op | open) != (b->op | open))
            return TRI_NO;
    }
    return ordered_compare(m, a->child, b->child, a->n, rule, depth);
}

/* ---- anything ---- */

/* Two numbers stated to be equal: either may be the answer. */
static bool two_values(const struct math_node *a)
{
    return a->len == 1 && (a->s[0] == REL_EQ || a->s[0] == REL_APPROX) && node_closed(a->child[0]) && node_closed(a->child[1])
           && !node_names(a->child[0]) && !((a->child[0]->flags | a->child[1]->flags) & HAS_PM);
}

/* Lines of a derivation that end in the answer: the last line gives a name its value, and all earlier lines are about
 * that name and give it no other value. Other lists are returned unchanged. */
static struct math_node *derived(struct math_node *a)
{
    if (a->kind != K_LIST || a->scale != 1 || a->op != 0)
        return a;
    struct math_node *last = a->child[a->n - 1];
    if (last->kind != K_REL || last->s[0] != REL_EQ || last->child[0]->kind != K_SYM)
        return a;
    for (int i = 0; i + 1 < a->n; i++) {
        struct math_node *line = a->child[i];
        if (line->kind != K_REL || !node_occurs(line, last->child[0])
            || (node_is(line->child[0], K_SYM) && node_closed(line->child[line->n - 1])))
            return a;
    }
    return last;
}

/* How the relations of a list are joined: 'a' and, 'o' or, 'm' both, 0 it does not matter, as with the values of one unknown.
 * Commas between equations for several unknowns are a system. */
static char list_join(const struct math_node *a)
{
    bool many = false, values = true;
    if (a->kind != K_LIST || a->n < 2 || a->child[0]->kind != K_REL)
        return 0;
    for (int i = 0; i < a->n; i++)
        values &= a->child[i]->kind != K_REL || (a->child[i]->len == 1 && a->child[i]->s[0] == REL_EQ);
    unknown_find(a, NULL, &many);
    return (char)(values && !many ? 0 : a->base == 0 && many ? 'a' : a->base);
}

/* Is one list of relations joined by "and" and the other by "or"? A comma may be either. */
static bool joins_differ(const struct math_node *a, const struct math_node *b)
{
    char x = list_join(a), y = list_join(b);
    return x != 0 && y != 0 && x != y;
}

/* How many braces enclose the one element of a, the empty set among them: 2 for {{1}} and for {{}}, 1 for {1} and for {}. */
static int depth_of_set(const struct math_node *a)
{
    int n = 0;
    for (; a->kind == K_SET && a->n == 1; a = a->child[0])
        n++;
    return n + (a->kind == K_SET || (a->kind == K_NAMED_SET && a->op == '0'));
}

/* One of them is a relation: x = 5 beside 5, or x > 1 beside a set. */
static enum tri relation_other(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct math_node *r = a->kind == K_REL ? a : b, *o = r == a ? b : a, *v = relation_assigned(r);
    struct pieces pr, po;
    if (v && relation_identity(m, r))
        return TRI_NO;
    if (v)
        return r == a ? tree_compare(m, v, b, rule, depth + 1) : tree_compare(m, a, v, rule, depth + 1);
    *rule = "relation";
    if (is_set_tree(o) || o->kind == K_TUPLE || o->kind == K_LIST || o->kind == K_SET)
        if (pieces_of(m, r, &pr, 24) && pieces_of(m, o, &po, 24))
            return pieces_equal(m, &pr, &po, rule);
    return TRI_NO;
}

/* One of them is a point or an interval. */
static enum tri tuple_other(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct math_node *t = a->kind == K_TUPLE ? a : b, *o = t == a ? b : a;
    if (t->n == 2 && o->kind == K_LIST && relation_inequality(o->child[0])) {    // x > 1, x < 3
        struct pieces pt, po;
        if (pieces_of(m, o, &po, 24) && pieces_of(m, t, &pt, 24))
            return pieces_equal(m, &pt, &po, rule);
    }
    *rule = "tuple";
    // a point or an interval is not the set of its ends, nor two solutions of one unknown
    bool places = o->kind == K_LIST && o->n == t->n && (none_named(o->child, o->n) || all_named(o->child, o->n));
    if (places && (t->op == 0 || t->n > 2))
        return t == a ? ordered_compare(m, t->child, o->child, t->n, rule, depth)
                      : ordered_compare(m, o->child, t->child, t->n, rule, depth);
    if (is_list(o) && o->n == 1)
        return t == a ? tree_compare(m, a, o->child[0], rule, depth + 1) : tree_compare(m, o->child[0], b, rule, depth + 1);
    if (node_is(o, K_MATRIX) && t->op == 0 && o->n == t->n && (o->scale == 1 || o->scale == o->n))
        return t == a ? ordered_compare(m, t->child, o->child, t->n, rule, depth)
                      : ordered_compare(m, o->child, t->child, t->n, rule, depth);
    return TRI_NO;
}

/* One of them is a list or a set of values. */
static enum tri lists_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct pieces pa, pb;
    bool inequalities = a->kind == K_LIST && b->kind == K_LIST && relation_inequality(a->child[0]) && relation_inequality(b->child[0]);
    if (inequalities && pieces_of(m, a, &pa, 24) && pieces_of(m, b, &pb, 24)) {
        bool many = false;
        const struct math_node *ua = unknown_find(a, NULL, &many), *ub = unknown_find(b, NULL, &many);
        if (ua && ub && unknown_same(ua, ub))
            return pieces_equal(m, &pa, &pb, rule);
    }
    enum tri t = list_compare(m, a, b, rule, depth);
    if (t == TRI_YES && joins_differ(a, b)) {
        m->why = "'and' in one answer, 'or' in the other";
        return TRI_UNKNOWN;
    }
    return t;
}

/* One of them has a matrix in it. */
static enum tri matrices_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct math_node *x = matrix_value(m, a, 16), *y = matrix_value(m, b, 16);
    if (!x || !y) {
        m->why = "matrices that could not be computed";
        return TRI_UNKNOWN;
    }
    *rule = "matrix";
    if (x->kind != K_MATRIX || y->kind != K_MATRIX)
        return x->kind != K_MATRIX && y->kind != K_MATRIX ? scalar_compare(m, x, y, rule, 0) : TRI_NO;
    if (x->n != y->n || x->scale != y->scale)
        return TRI_NO;
    enum tri t = ordered_compare(m, x->child, y->child, x->n, rule, depth);
    *rule = "matrix";
    return t;
}

enum tri tree_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    if (!a || !b || depth > 24 || m->steps < 0)
        return TRI_UNKNOWN;
    m->steps -= 4;
    if (!is_list(a) || !is_list(b)) {
        a = derived(a);
        b = derived(b);
    }
    if ((a->kind == K_REL && relation_chain_false(m, a)) || (b->kind == K_REL && relation_chain_false(m, b))) {
        m->why = "a false equation";
        return TRI_UNKNOWN;
    }
    if (depth_of_set(a) != depth_of_set(b) && MAX(depth_of_set(a), depth_of_set(b)) > 1) {    // {{1}} is not {1}
        *rule = "set";
        return TRI_NO;
    }
    while (a->kind == K_SET && a->n == 1 && !is_list(b))
        a = a->child[0];
    while (b->kind == K_SET && b->n == 1 && !is_list(a))
        b = b->child[0];
    if ((a->kind == K_REL) != (b->kind == K_REL) && two_values(a->kind == K_REL ? a : b)) {    // 1/3 = 0.33
        struct math_node *r = a->kind == K_REL ? a : b, *o = r == a ? b : a;
        enum tri t = tree_compare(m, r->child[1], o, rule, depth + 1);
        return t == TRI_YES ? t : tri_either(t, tree_compare(m, r->child[0], o, rule, depth + 1));
    }
    if (a->kind == K_REL)
        a = relation_shorten(m, a);
    if (b->kind == K_REL)
        b = relation_shorten(m, b);
    if (!a || !b)
        return TRI_UNKNOWN;
    if ((a->flags | b->flags) & HAS_PM && !is_list(a) && !is_list(b))
        return list_compare(m, a, b, rule, depth);
    if (a->kind == K_REL && b->kind == K_REL)
        return relation_compare(m, a, b, rule, depth);
    if (a->kind == K_REL || b->kind == K_REL)
        return relation_other(m, a, b, rule, depth);
    if (a->kind == K_CASES && b->kind == K_CASES)
        return cases_compare(m, a, b, rule, depth);
    if (a->kind == K_CASES || b->kind == K_CASES) {    // |x| may be a function by cases, a number is hardly one
        struct math_node *o = a->kind == K_CASES ? b : a;
        *rule = "cases";
        m->why = "a function by cases";
        return node_closed(o) ? TRI_NO : TRI_UNKNOWN;
    }
    enum tri listed;
    if ((a->kind == K_BUILDER || b->kind == K_BUILDER) && builders_compare(m, a, b, rule, depth, &listed))
        return listed;
    if (is_set_tree(a) || is_set_tree(b))
        return set_compare(m, a, b, rule, depth);
    if (a->kind == K_TUPLE && b->kind == K_TUPLE)
        return tuple_compare(m, a, b, rule, depth);
    if (a->kind == K_TUPLE || b->kind == K_TUPLE)
        return tuple_other(m, a, b, rule, depth);
    if (is_list(a) || is_list(b))
        return lists_compare(m, a, b, rule, depth);
    if ((a->flags | b->flags) & HAS_MATRIX)
        return matrices_compare(m, a, b, rule, depth);
    if ((a->flags | b->flags) & HAS_SET) {
        if (a->kind == b->kind && a->n == b->n && a->op == b->op && a->n > 0)
            return ordered_compare(m, a->child, b->child, a->n, rule, depth);
        return TRI_UNKNOWN;
    }
    return scalar_compare(m, a, b, rule, 0);
}

enum tri math_compare(struct math *m, struct math_node *gold, struct math_node *pred, const char **rule)
{
    *rule = "";
    enum tri t = readings_decide(m, &gold, &pred) ? tree_compare(m, gold, pred, rule, 0) : TRI_UNKNOWN;
    if (t == TRI_NO && (m->steps < 0 || m->out_of_memory))
        t = TRI_UNKNOWN;    // another rule may have been skipped for lack of memory or steps
    if (t == TRI_UNKNOWN && !m->why)
        m->why = "neither proved nor refuted";
    return t;
}
