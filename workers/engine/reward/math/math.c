#include "workers/engine/reward/math/math.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/utf8.h"
#include "workers/engine/reward/math/compare.h"
#include "workers/engine/reward/math/lexer.h"
#include "workers/engine/reward/math/node.h"

#define TEXT_KEY_MAX 2048    // bytes of a text that is compared as text

static const char RULE_FALSE[] = "a false equation", RULE_UNDEFINED[] = "undefined form", RULE_IDENTITY[] = "gt_answer is an identity",
                  RULE_VALUE[] = "value of an equation";

bool math_rule_one_sided(const char *rule)
{
    static const char *const rules[] = { RULE_FALSE, RULE_UNDEFINED, RULE_IDENTITY, RULE_VALUE };
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        if (strcmp(rule, rules[i]) == 0)
            return true;
    return false;
}

struct math *math_new(const struct math_config *config, struct error *err)
{
    struct math *m = calloc(1, sizeof *m);
    if (m)
        m->mem = malloc(MATH_MEM_BYTES);
    if (!m || !m->mem) {
        math_free(m);
        error_set(err, ERR_NO_MEMORY, "no memory for comparing answers");
        return NULL;
    }
    m->config = *config;
    commands_init(m);
    return m;
}

void math_free(struct math *m)
{
    if (m)
        free(m->mem);
    free(m);
    flint_cleanup();    // this thread's cached numbers and constants; no check holds on to any of them
}

static bool is_alnum(char c)
{
    return is_digit(c) || is_letter(c);
}

/* Pass over spaces, braces and commas from *i on. True: there was a comma with something before and after it, a brace between
 * letters or digits, or a space between two digits, so that 1{23} is not 12{3} and x,=x not x=x. */
static bool fill_skip(struct span s, size_t *i)
{
    bool brace = false, space = false, comma = false;
    size_t from = *i;
    for (; *i < s.len && memchr(" {},", s.s[*i], 4); ++*i) {
        comma |= s.s[*i] == ',';
        space |= s.s[*i] == ' ';
        brace |= s.s[*i] == '{' || s.s[*i] == '}';
    }
    if (from == 0 || *i == s.len)
        return false;
    char before = s.s[from - 1], after = s.s[*i];
    return comma || (brace && is_alnum(before) && is_alnum(after)) || (space && is_digit(before) && is_digit(after));
}

/* ColossalChat's second chance: the same text except for spaces, braces and commas that separate nothing. */
static bool text_same(struct span a, struct span b)
{
    size_t i = 0, j = 0, n = 0;
    for (;;) {
        bool apart = fill_skip(a, &i) != fill_skip(b, &j);
        if (i == a.len || j == b.len)
            return i == a.len && j == b.len && n > 0;
        if (apart || a.s[i++] != b.s[j++])
            return false;
        n++;
    }
}

/* Does an "and" at s[i] only join a word to a number: 2 hours and 30 minutes? */
static bool joins_number(struct span s, size_t i)
{
    if (s.len - i < 5 || strncasecmp(s.s + i, "and", 3) != 0 || i < 2 || s.s[i - 1] != ' ')
        return false;
    size_t before = i - 1, after = i + 3;
    while (before > 0 && memchr(" {}", s.s[before], 3))
        before--;
    while (after < s.len && memchr(" {}~", s.s[after], 4))
        after++;
    return after > i + 3 && after < s.len && is_digit(s.s[after]) && is_letter(s.s[before]);
}

/* Letters, numbers with their signs and everything that is not ASCII, without case, font commands and other
 * punctuation. False: too long. */
static bool text_key(struct span s, char *key, size_t *len)
{
    static const char *const fonts[] = { "\\text", "\\mathrm", "\\textbf", "\\mbox", "\\mathbf", "\\textit", "\\quad", "\\emph" };
    *len = 0;
    bool gap = false;    // something was left out since the last character
    for (size_t i = 0; i < s.len; i++) {
        if (s.s[i] == '\\') {
            size_t best = 0;
            for (size_t k = 0; k < ARRAY_SIZE(fonts); k++) {
                size_t n = strlen(fonts[k]);
                if (s.len - i >= n && n > best && memcmp(s.s + i, fonts[k], n) == 0)
                    best = n;
            }
            if (best > 0) {
                i += best - 1;
                continue;
            }
        }
        if (joins_number(s, i)) {
            i += strlen("and") - 1;
            gap = true;
            continue;
        }
        char c = s.s[i];
        bool letter = is_letter(c), digit = is_digit(c);
        bool before = i + 1 < s.len && is_digit(s.s[i + 1]), after = i > 0 && is_digit(s.s[i - 1]);
        bool part = (c == '.' && before && after) || (c == '-' && before && !(i > 0 && is_alnum(s.s[i - 1])));
        if (!letter && !digit && !part && !(c & 0x80) && !(c && strchr("+=<>/*^|\\%[]", c))) {
            gap = true;
            continue;
        }
        if (*len + 2 > TEXT_KEY_MAX)
            return false;
        if (gap && digit && *len > 0 && is_digit(key[*len - 1]))    // 1, 23 is not 12, 3
            key[(*len)++] = ' ';
        gap = false;
        key[(*len)++] = c >= 'A' && c <= 'Z' ? (char)(c | 32) : c;
    }
    return *len > 0;
}

static bool keys_same(struct span a, struct span b)
{
    char ka[TEXT_KEY_MAX], kb[TEXT_KEY_MAX];
    size_t na, nb;
    return text_key(a, ka, &na) && text_key(b, kb, &nb) && na == nb && memcmp(ka, kb, na) == 0;
}

/* Words rather than mathematics: letters in a row outside commands, and nothing that only a formula has. */
static bool is_words(struct span s)
{
    int run = 0, longest = 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.s[i];
        if (c == '\\' && i + 1 < s.len && ((s.s[i + 1] | 32) >= 'a' && (s.s[i + 1] | 32) <= 'z')) {
            size_t k = i + 1;
            while (k < s.len && ((s.s[k] | 32) >= 'a' && (s.s[k] | 32) <= 'z'))
                k++;
            size_t n = k - i - 1;
            if (!(n >= 4 && memcmp(s.s + i + 1, "text", 4) == 0) && !(n == 4 && memcmp(s.s + i + 1, "mbox", 4) == 0)
                && !(n == 6 && memcmp(s.s + i + 1, "mathrm", 6) == 0) && !(n == 4 && memcmp(s.s + i + 1, "quad", 4) == 0))
                return false;
            i = k - 1;
            run = 0;
            continue;
        }
        run = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) ? run + 1 : 0;
        longest = MAX(longest, run);
        if (strchr("=<>^_", c) && c)
            return false;
    }
    return longest >= 3;
}

/* Only letters, \text and the like: compared as text before it is read as a product of symbols. */
static bool only_letters(struct span s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.s[i] | 32) >= 'a' && (s.s[i] | 32) <= 'z') && !memchr("\\{} ", s.s[i], 4) && !(s.s[i] & 0x80))
            return false;
    return s.len > 0;
}

/* Three letters or more in a row and nothing else: a word, or points in their order, rather than a product. */
static bool is_one_word(struct span s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.s[i] | 32) >= 'a' && (s.s[i] | 32) <= 'z'))
            return false;
    return s.len >= 3;
}

/* Remove what only wraps an answer: $...$, \( \), \[ \], one box, bold marks. */
static struct span unwrap(struct span s)
{
    static const struct {
        const char *open, *close;
    } wraps[] = { { "$$", "$$" }, { "$", "$" }, { "\\(", "\\)" }, { "\\[", "\\]" }, { "**", "**" } };
    for (int round = 0; round < 4; round++) {
        size_t before = s.len;
        s = span_trim(s);
        for (size_t i = 0; i < ARRAY_SIZE(wraps); i++) {
            size_t o = strlen(wraps[i].open), c = strlen(wraps[i].close);
            if (s.len > o + c && memcmp(s.s, wraps[i].open, o) == 0 && memcmp(s.s + s.len - c, wraps[i].close, c) == 0
                && !memmem(s.s + o, s.len - o - c, wraps[i].open, o))
                s = (struct span){ s.s + o, s.len - o - c };
        }
        struct span box;
        if (s.len > 7 && memcmp(s.s, "\\boxed{", 7) == 0 && answer_boxed(s.s, s.len, &box) && box.s == s.s + 7
            && box.s + box.len + 1 == s.s + s.len)
            s = box;
        if (s.len == before)
            break;
    }
    return s;
}

static struct math_node *answer_parse(struct math *m, struct span s, bool plain)
{
    return s.len > 0 && s.len <= MATH_ANSWER_MAX ? math_parse(m, s.s, s.len, plain) : NULL;
}

/* Is what follows a choice's letter more about the choice than what it chooses: another one, "is wrong"? */
static bool choice_goes_on(struct span s)
{
    static const char *const words[] = { "or", "and", "is", "not", "isn't", "nor", "but", "seems", "may", "cannot", "could", "might" };
    static const char *const fonts[] = { "\\text{", "\\textbf{", "\\mathrm{", "\\textrm{" };
    for (size_t i = 0; i < ARRAY_SIZE(fonts); i++) {
        size_t n = strlen(fonts[i]);
        if (starts(s.s, s.s + s.len, fonts[i]))
            s = span_trim((struct span){ s.s + n, s.len - n });
    }
    if (s.len > 0 && memchr(",;/&", *s.s, 4))
        return true;
    if (s.len > 2 && *s.s == '(' && s.s[1] >= 'A' && s.s[1] <= 'J' && s.s[2] == ')')
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        size_t n = strlen(words[i]);
        if (s.len >= n && strncasecmp(s.s, words[i], n) == 0 && (s.len == n || !is_alnum(s.s[n])))
            return true;
    }
    return false;
}

/* "\\textbf{(B)}\\ 12" and "(B) 12": the letter of the choice and what it chooses; false: the text is not of this form. */
static bool choice_split(struct span s, struct span *letter, struct span *value)
{
    static const char *const open[] = { "\\textbf{(", "\\text{(", "\\mathrm{(", "\\mathbf{(", "\\textrm{(", "(" };
    for (size_t i = 0; i < ARRAY_SIZE(open); i++) {
        size_t n = strlen(open[i]);
        bool braced = open[i][0] == '\\';
        if (s.len < n + 3 + braced || memcmp(s.s, open[i], n) != 0 || s.s[n] < 'A' || s.s[n] > 'J' || s.s[n + 1] != ')')
            continue;
        size_t k = n + 2, behind = k;
        while (k < s.len && (s.s[k] == ' ' || s.s[k] == '~'))
            k++;
        if (braced && (k == s.len || s.s[k++] != '}'))
            return false;
        while (k < s.len && (memchr(" ~:.", s.s[k], 4) || (s.s[k] == '\\' && k + 1 < s.len && memchr(" ,;:!", s.s[k + 1], 5))))
            k += s.s[k] == '\\' ? 2 : 1;
        if (s.len - k > 5 && memcmp(s.s + k, "\\quad", 5) == 0)
            k += 5;
        *letter = (struct span){ s.s + n, 1 };
        *value = span_trim((struct span){ s.s + k, s.len - k });
        return value->len > 0 && (braced || k > behind) && !choice_goes_on(*value);
    }
    return false;
}

/* Why an answer is wrong for any question: it has no value, or says that 3 + 2 = 4. NULL: it may be right. */
static const char *nonsense(struct math *m, struct math_node *a)
{
    const char *why = m->why;
    const char *out = relation_false(m, a) ? RULE_FALSE : scalar_undefined(m, a) ? RULE_UNDEFINED : NULL;
    m->why = why;
    return out;
}

/* A gold value against "expression = value". */
static bool value_stated(struct math *m, struct math_node *gold, struct math_node *pred)
{
    const char *rule;
    struct math_node *value = gold->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT) ? NULL : relation_value(m, pred);
    return value && math_compare(m, gold, value, &rule) == TRI_YES;
}

/* The constant of integration of a, a term C or c beside an expression of the usual variables; NULL: it has none. */
static struct math_node *integration_constant(struct math_node *a)
{
    while (a->kind == K_REL && a->n > 0)
        a = a->child[a->n - 1];
    struct math_node *c = a->kind == K_ADD ? a->child[a->n - 1] : NULL;
    return c && c->kind == K_SYM && c->len == 1 && (*c->s | 32) == 'c' ? c : NULL;
}

/* Are the symbols of a, those named c aside, variables as an integral has them? */
static bool usual_variables(const struct math_node *a, const struct math_node *c)
{
    if (a->kind == K_SYM)
        return name_same(a, c) || (a->len == 1 && strchr("rstuvwxyz", *a->s)) || (a->len == 5 && memcmp(a->s, "theta", 5) == 0);
    for (int i = 0; i < a->n; i++)
        if (!usual_variables(a->child[i], c))
            return false;
    return true;
}

/* The answer with its constant of integration named as the gold's: + c is + C. */
static struct math_node *constant_named(struct math *m, struct math_node *gold, struct math_node *pred)
{
    struct math_node *g = integration_constant(gold), *p = integration_constant(pred);
    bool apart = g && p && !name_same(g, p) && usual_variables(gold, g) && usual_variables(pred, p);
    return apart ? node_substitute(m, pred, p, g) : pred;
}

static void trees_decide(struct math *m, struct math_node *gold, struct math_node *pred, bool same_text, struct math_result *out)
{
    const char *rule = "";
    if (!readings_decide(m, &gold, &pred)) {
        out->verdict = VERDICT_CANNOT_TELL;
        out->rule = m->why;
        return;
    }
    if (relation_identity(m, gold) || (same_text && relation_identity(m, pred))) {    // one to be proved says nothing about an answer
        out->verdict = same_text ? VERDICT_EQUAL : VERDICT_CANNOT_TELL;
        out->rule = same_text ? "text" : RULE_IDENTITY;
        return;
    }
    if (!(pred = constant_named(m, gold, pred))) {
        out->verdict = VERDICT_CANNOT_TELL;
        out->rule = m->why ? m->why : "no room";
        return;
    }
    enum tri t = math_compare(m, gold, pred, &rule);
    out->rule = rule;
    if (t == TRI_YES) {
        out->verdict = VERDICT_EQUAL;
    } else if (t == TRI_NO && value_stated(m, gold, pred)) {
        out->verdict = VERDICT_EQUAL;
        out->rule = RULE_VALUE;
    } else if (t == TRI_UNKNOWN) {
        const char *why = m->why ? m->why : "neither proved nor refuted", *bad = same_text ? NULL : nonsense(m, pred);
        bool wrong = bad && !nonsense(m, gold);
        out->verdict = same_text ? VERDICT_EQUAL : wrong ? VERDICT_DIFFERENT : VERDICT_CANNOT_TELL;
        out->rule = same_text ? "text" : wrong ? bad : why;
    }
}

static void bare_decide(struct math *m, struct span p, bool p_plain, struct span g, bool g_plain, struct math_result *out)
{
    utf8_copy(out->pred, sizeof out->pred, p.s, p.len);
    utf8_copy(out->gold, sizeof out->gold, g.s, g.len);
    out->verdict = VERDICT_DIFFERENT;
    out->rule = "text";
    if (p.len == g.len && p.len > 0 && memcmp(p.s, g.s, p.len) == 0) {
        out->verdict = VERDICT_EQUAL;
        out->pred_parsed = out->gold_parsed = true;
        return;
    }
    m->doubt = (struct span){ 0 };
    struct math_node *gold = answer_parse(m, g, g_plain);
    const char *why = m->why;
    struct span gold_doubt = m->doubt;
    m->doubt = (struct span){ 0 };
    struct math_node *pred = answer_parse(m, p, p_plain);
    bool doubt = (gold_doubt.len > 0 || m->doubt.len > 0) && !keys_same(gold_doubt, m->doubt);
    m->why = NULL;
    bool g_words = !gold && is_words(g), p_words = !pred && is_words(p);
    out->gold_parsed = gold || g_words;
    out->pred_parsed = pred || p_words;
    bool text = (gold && gold->kind == K_TEXT) || (pred && pred->kind == K_TEXT) || g_words || p_words
                || (g.len + p.len > 2 && only_letters(g) && only_letters(p));
    if (text && keys_same(g, p)) {
        out->verdict = VERDICT_EQUAL;
        return;
    }
    if (is_one_word(g) && is_one_word(p))    // cat is not act, though c a t = a c t
        return;
    if (gold && pred) {
        bool same = text_same(p, g);
        trees_decide(m, gold, pred, same, out);
        if (doubt && !same && out->verdict == VERDICT_EQUAL) {
            bool one_sided = math_rule_one_sided(out->rule);    // the other way round they are different without the words
            out->verdict = one_sided ? VERDICT_DIFFERENT : VERDICT_CANNOT_TELL;
            out->rule = one_sided ? "relation" : "words that may change the value";
        }
        return;
    }
    if (g.len > 0 && text_same(p, g)) {
        out->verdict = VERDICT_EQUAL;
        out->pred_parsed |= !out->gold_parsed;    // the same text as a gt_answer that cannot be read either: full marks
        return;
    }
    if (!out->gold_parsed) {
        out->verdict = VERDICT_CANNOT_TELL;
        out->rule = why ? why : g.len > MATH_ANSWER_MAX ? "gt_answer is too long" : "gt_answer cannot be parsed";
    } else if (!out->pred_parsed) {
        out->rule = p.len > MATH_ANSWER_MAX ? "answer is too long" : "answer cannot be parsed";
    }
}

/* One side names a choice and what it chooses: the other may have either. Both: both must be the same. */
static bool choice_decide(struct math *m, struct span p, struct span g, struct math_result *out)
{
    struct span pl, pv, gl, gv;
    bool pc = choice_split(p, &pl, &pv), gc = choice_split(g, &gl, &gv);
    if (!pc && !gc)
        return false;
    if (pc && gc) {
        bare_decide(m, pv, false, gv, false, out);
        if (*pl.s != *gl.s)
            out->verdict = VERDICT_DIFFERENT;
    } else {
        struct span letter = pc ? pl : gl, other = unwrap(pc ? g : p);
        bare_decide(m, letter, false, other, false, out);
        if (out->verdict != VERDICT_EQUAL)
            bare_decide(m, pc ? pv : p, false, pc ? g : gv, false, out);
    }
    utf8_copy(out->pred, sizeof out->pred, p.s, p.len);
    utf8_copy(out->gold, sizeof out->gold, g.s, g.len);
    return true;
}

static void decide(struct math *m, struct span p, bool p_plain, struct span g, bool g_plain, struct math_result *out)
{
    if (!choice_decide(m, p, g, out))
        bare_decide(m, p, p_plain, g, g_plain, out);
}

void math_start(struct math *m)
{
    m->used = 0;
    m->out_of_memory = false;
    m->steps = MATH_STEPS;
    m->n_bind = 0;
    m->why = NULL;
    m->doubt = (struct span){ 0 };
}

void math_answer(struct math *m, const char *pred, size_t pred_len, const char *gold, size_t gold_len, struct math_result *out)
{
    math_start(m);
    *out = (struct math_result){ .verdict = VERDICT_DIFFERENT };
    decide(m, unwrap((struct span){ pred, pred_len }), false, unwrap((struct span){ gold, gold_len }), false, out);
}

void math_response(struct math *m, const char *response, size_t response_len, const char *gold, size_t gold_len, struct math_result *out)
{
    math_start(m);
    *out = (struct math_result){ .verdict = VERDICT_DIFFERENT };
    struct extracted p = math_extract(m, response, response_len, false), g = math_extract(m, gold, gold_len, true);
    if (g.prose) {    // which of its numbers is the answer?
        struct span whole = span_trim((struct span){ gold, gold_len });
        struct span all = span_trim((struct span){ response, response_len });
        bool same = keys_same(whole, all) || keys_same(whole, unwrap(p.s));
        utf8_copy(out->pred, sizeof out->pred, p.s.s, p.s.len);
        utf8_copy(out->gold, sizeof out->gold, whole.s, whole.len);
        out->verdict = same ? VERDICT_EQUAL : VERDICT_CANNOT_TELL;
        out->pred_parsed = same;
        out->rule = same ? "text" : "gt_answer is prose around its formula";
        return;
    }
    decide(m, unwrap(p.s), p.plain, unwrap(g.s), g.plain, out);
}
