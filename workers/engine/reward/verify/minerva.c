/* minerva.c - the verifiers math and strict_math of open-instruct: answers normalised as text, and compared as mathematics
 *
 * Two normalisations, step by step as published: Minerva's (Lewkowycz et al. 2022, appendix D) for the response's answer,
 * and Hendrycks' (MATH, arXiv 2103.03874, is_equiv) for both sides. Upstream also asks sympy, which in training never
 * answers, because its alarm may not be set outside Python's main thread; 'math_symbolic' asks our own engine instead. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/reward/answer.h"
#include "workers/engine/reward/verify/verify.h"

#define SYMBOLIC_MAX 1000    // bytes of an answer that is compared as mathematics; longer ones are prose
#define FINAL "Final Answer: The final answer is(.*?). I hope it is correct."

static const char *const substitutions[][2] = {
    { "an ", "" }, { "a ", "" },       { ".$", "$" },           { "\\$", "" },          { "\\ ", "" },
    { " ", "" },   { "mbox", "text" }, { ",\\text{and}", "," }, { "\\text{and}", "," }, { "\\text{m}", "\\text{}" },
};
static const char *const removed[] = {
    "square",    "ways",      "integers",    "dollars",    "mph",        "inches",     "ft",       "hours",           "km",
    "units",     "\\ldots",   "sue",         "points",     "feet",       "minutes",    "digits",   "cents",           "degrees",
    "cm",        "gm",        "pounds",      "meters",     "meals",      "edges",      "students", "childrentickets", "multiples",
    "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}",    "^\\circ",
    "^{\\circ}", "\\;",       ",\\!",        "{,}",        "\"",         "\\dots",
};

static struct span minerva(struct verify_host *h, struct span s)
{
    static const char *const rules[][2] = {
        { "(.*?)(\\$)(.*?)(\\$)(.*)", "$\\3$" },  { "(\\\\text\\{)(.*?)(\\})", "\\2" }, { "(\\\\textbf\\{)(.*?)(\\})", "\\2" },
        { "(\\\\overline\\{)(.*?)(\\})", "\\2" }, { "(\\\\boxed\\{)(.*)(\\})", "\\2" }, { "(frac)([^{])(.)", "frac{\\2}{\\3}" },
        { "(sqrt)([^{])", "sqrt{\\2}" },
    };
    struct pool *p = &h->pool;
    s = text_after_last(s, "=");
    for (size_t i = 0; i < ARRAY_SIZE(substitutions); i++)
        s = text_replace(p, s, substitutions[i][0], substitutions[i][1]);
    for (size_t i = 0; i < ARRAY_SIZE(removed); i++)
        s = text_replace(p, s, removed[i], "");
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        s = regex_replace(h->regexes, p, rules[i][0], rules[i][1], s);
    s = text_replace(p, s, "$", "");
    struct span digits = text_replace(p, s, ",", "");    // 100,000 is 100000
    return digits.len > 0 && strspn(pool_str(p, digits), "0123456789") == digits.len ? digits : s;
}

/* ---- Hendrycks' is_equiv; false: a step that is an exception upstream, after which the raw texts are compared ---- */

/* \frac1b and \frac12 become \frac{1}{b} and \frac{1}{2}; \frac1{72} too, but not \frac{72}1. */
static bool fracs_fix(struct pool *p, struct span *s)
{
    struct span part, mark = span_str("\\frac");
    char *out = pool_take(p, s->len * 2 + 16);    // each \frac grows by at most four bytes
    size_t n = 0, at = 0;
    if (!out)
        return false;
    for (bool first = true; text_part(*s, mark, &at, &part); first = false) {
        size_t i = 0, a, b;
        if (!first) {
            memcpy(out + n, mark.s, mark.len);
            n += mark.len;
            if (part.len == 0)
                return false;
            if (part.s[0] != '{') {
                text_next(part, &i), a = i;
                if (text_next(part, &i) < 0)
                    return true;    // upstream gives the text back as it was
                b = i;
                n += (size_t)sprintf(out + n, "{%.*s}", (int)a, part.s);
                if (part.s[a] != '{') {
                    n += (size_t)sprintf(out + n, "{%.*s}", (int)(b - a), part.s + a);
                    part = span_of(part.s + b, part.len - b);
                } else {
                    part = span_of(part.s + a, part.len - a);
                }
            }
        }
        memcpy(out + n, part.s, part.len);
        n += part.len;
    }
    *s = span_of(out, n);
    return true;
}

/* \sqrt3 becomes \sqrt{3}. */
static bool sqrts_fix(struct pool *p, struct span *s)
{
    struct span part, mark = span_str("\\sqrt");
    char *out = pool_take(p, s->len * 2 + 16);
    size_t n = 0, at = 0;
    if (!out)
        return false;
    for (bool first = true; text_part(*s, mark, &at, &part); first = false) {
        if (!first) {
            memcpy(out + n, mark.s, mark.len);
            n += mark.len;
            if (part.len == 0)
                return false;
            if (part.s[0] != '{') {
                size_t one = 0;
                text_next(part, &one);
                n += (size_t)sprintf(out + n, "{%.*s}", (int)one, part.s);
                part = span_of(part.s + one, part.len - one);
            }
        }
        memcpy(out + n, part.s, part.len);
        n += part.len;
    }
    *s = span_of(out, n);
    return true;
}

/* int() of Python: an optional sign, digits with single underscores between them. */
static bool is_int(struct span s)
{
    s = text_strip(s);
    size_t i = s.len > 0 && (s.s[0] == '-' || s.s[0] == '+');
    bool digit = false;
    for (; i < s.len; i++) {
        if (s.s[i] == '_' ? !digit : !isdigit((unsigned char)s.s[i]))
            return false;
        digit = s.s[i] != '_';
    }
    return digit;
}

/* Is the text what str(int(text)) gives? */
static bool is_canonical_int(struct span s)
{
    struct span digits = s.len > 0 && s.s[0] == '-' ? span_of(s.s + 1, s.len - 1) : s;
    for (size_t i = 0; i < digits.len; i++)
        if (!isdigit((unsigned char)digits.s[i]))
            return false;
    return digits.len == 1 ? s.len == 1 || digits.s[0] != '0' : digits.len > 1 && digits.s[0] != '0';
}

/* a/b of whole numbers becomes \frac{a}{b}; a/b of anything else is an exception upstream. */
static bool slash_fix(struct pool *p, struct span *s)
{
    if (span_count(*s, span_str("/")) != 1)
        return true;
    struct span a = text_before_first(*s, "/"), b = text_after_last(*s, "/");
    if (!is_int(a) || !is_int(b))
        return false;
    if (!is_canonical_int(a) || !is_canonical_int(b))
        return true;
    char *out = pool_take(p, s->len + 16);
    if (!out)
        return false;
    *s = span_of(out, (size_t)sprintf(out, "\\frac{%.*s}{%.*s}", (int)a.len, a.s, (int)b.len, b.s));
    return true;
}

static bool hendrycks(struct pool *p, struct span *text)
{
    static const char *const steps[][2] = {
        { "\n", "" },     { "\\!", "" },     { "\\\\", "\\" },    { "tfrac", "frac" }, { "dfrac", "frac" },
        { "\\left", "" }, { "\\right", "" }, { "^{\\circ}", "" }, { "^\\circ", "" },   { "\\$", "" },
    };
    struct span s = *text;
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        s = text_replace(p, s, steps[i][0], steps[i][1]);
    int64_t n_unit = span_count(s, span_str("\\text{ "));
    if (n_unit > 1)
        return false;
    s = n_unit ? text_before_first(s, "\\text{ ") : s;
    s = text_replace(p, s, "\\%", "");
    s = text_replace(p, s, " .", " 0.");
    s = text_replace(p, s, "{.", "{0.");
    if (s.len == 0) {
        *text = s;
        return true;
    }
    if (s.s[0] == '.') {
        char *zero = pool_take(p, s.len + 1);
        if (!zero)
            return false;
        zero[0] = '0';
        memcpy(zero + 1, s.s, s.len);
        s = span_of(zero, s.len + 1);
    }
    if (span_count(s, span_str("=")) == 1 && text_n_char(text_before_first(s, "=")) <= 2)
        s = text_after_last(s, "=");
    if (!sqrts_fix(p, &s))
        return false;
    s = text_replace(p, s, " ", "");
    if (!fracs_fix(p, &s))
        return false;
    if (span_equal(s, span_str("0.5")))
        s = span_str("\\frac{1}{2}");
    if (!slash_fix(p, &s))
        return false;
    *text = s;
    return true;
}

/* symbolic: the answer is short enough and not prose. */
static bool equal(struct verify_host *h, struct span pred, struct span gold, bool symbolic, const char **why)
{
    struct span a = pred, b = gold;
    bool read = hendrycks(&h->pool, &a) && hendrycks(&h->pool, &b);
    *why = "the same text when normalised";
    if (read ? span_equal(a, b) : span_equal(pred, gold))
        return true;
    if (!h->options.math_symbolic || !symbolic || pred.len > SYMBOLIC_MAX || gold.len > SYMBOLIC_MAX)
        return false;
    struct math_result res;
    math_answer(h->math, pred.s, pred.len, gold.s, gold.len, &res);
    *why = "mathematically equal";
    return res.verdict == VERDICT_EQUAL;
}

/* ---- where the answer is ---- */

/* The content of the last box, as the other rewards find it; a mention of \boxed is none. Without one, what upstream takes after
 * "\boxed ": \boxed 42. Upstream gives \boxed {42} its braces, finds no answer in \fbox{42}, and takes a mention for a box. */
static bool boxed(struct span s, struct span *out)
{
    if (answer_boxed(s.s, s.len, out))
        return true;
    if (!span_has(s, "\\boxed "))
        return false;
    *out = text_before_first(text_after_last(s, "\\boxed "), "$");
    return true;
}

/* The answer of Minerva's sentence, normalised. The end of the sentence may be missing. */
static bool sentence(struct verify_host *h, struct span s, struct span *out)
{
    static const char end[] = "I hope it is correct.";
    struct span g[RE_GROUPS];
    char *closed = pool_take(&h->pool, s.len + sizeof end);
    if (!closed)
        return false;
    memcpy(closed, s.s, s.len);
    memcpy(closed + s.len, end, sizeof end - 1);
    if (!regex_find(h->regexes, FINAL, 0, span_of(closed, s.len + sizeof end - 1), 0, g))
        return false;
    *out = minerva(h, text_strip(g[1]));
    return true;
}

/* Text between the last two dollar signs. */
static bool last_formula(struct span s, struct span *out)
{
    int64_t last = -1, before = -1;
    for (int64_t at = 0; (at = span_find(s, span_str("$"), (size_t)at)) >= 0; at++) {
        before = last;
        last = at;
    }
    if (before >= 0)
        *out = span_of(s.s + before + 1, (size_t)(last - before - 1));
    return before >= 0;
}

static void candidates_score(struct verify_host *h, const struct span *answer, int n, int n_symbolic, struct span gold,
                             struct verify_result *out)
{
    const char *why = "";
    for (int i = 0; i < n && out->score == 0; i++) {
        out->score = equal(h, answer[i], gold, i < n_symbolic, &why);
        verify_say(out, out->score > 0 ? why : "different", answer[i], gold);
    }
}

void verify_math(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span answer[2], gold = verify_truth(h, in->truth);
    int n = 0, n_symbolic;
    n += boxed(in->text, &answer[n]);
    n += sentence(h, in->text, &answer[n]);
    if (n == 0 && last_formula(in->text, &answer[0]))
        answer[n++] = minerva(h, answer[0]);
    n_symbolic = n;
    if (n == 0) {    // everything is the answer, normalised and as it stands
        answer[n++] = minerva(h, in->text);
        answer[n++] = in->text;
        n_symbolic = answer[0].len <= 40 ? 1 : 0;    // a number or a formula, not a paragraph run together
    }
    candidates_score(h, answer, n, n_symbolic, gold, out);
}

void verify_strict_math(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span answer, gold = verify_truth(h, in->truth);
    bool found = sentence(h, in->text, &answer);
    if (!found)
        answer = minerva(h, in->text);
    candidates_score(h, &answer, 1, found || answer.len <= 40, gold, out);
}
