/* universal_answer_test.c - no answer may match more gold answers than it should
 *
 * A policy that is rewarded for equality looks for the one string that always passes. Here a few hundred short answers -
 * numbers in many dresses, letters, infinities, empty forms, relations, intervals, sets, identities, words - meet
 * thousands of golds. What an answer is worth is known from how it was made, never from the code under test: each has
 * keys that name its values, and so has each gold. An answer may be equal to a gold only when they share a key; one
 * without a key - it has no value, or says nothing - may be equal to none. With the golds of the judged suites, whose
 * values are not known here, an answer with a value may solve SHARE_MAX of them, one without may solve none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"
#include "workers/engine/reward/math/math.h"

#define ITEMS_MAX 4096
#define KEYS_MAX 4
#define SHARE_MAX 0.04    // of the golds of the suites; the most frequent value, 5, is 3.4 % of them: 30 of 895, in any dress

struct item {
    char text[160];
    char key[KEYS_MAX][48];
    int n_key;
    int solved;    // golds of the suites
};
struct items {
    int n;
    struct item *item;    // (ITEMS_MAX)
};

static struct item *add(struct items *l, const char *text)
{
    assert_in_range(l->n, 0, ITEMS_MAX - 1);
    struct item *it = &l->item[l->n++];
    *it = (struct item){ 0 };
    snprintf(it->text, sizeof it->text, "%s", text);
    return it;
}

static void key(struct item *it, const char *format, ...)
{
    va_list ap;
    assert_in_range(it->n_key, 0, KEYS_MAX - 1);
    va_start(ap, format);
    vsnprintf(it->key[it->n_key++], sizeof it->key[0], format, ap);
    va_end(ap);
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a < 0 ? -a : a;
}

static void key_rational(struct item *it, const char *kind, int64_t num, int64_t den)
{
    int64_t g = gcd(num, den);
    key(it, "%s:%" PRId64 "/%" PRId64, kind, (num / g), (den / g));
}

enum share {
    SHARE_NONE,
    SHARE_MAY,
    SHARE_MUST,
};

/* May, or must, the answer solve the gold? A key that begins with '?' is a value it may stand for. */
static enum share share_key(const struct item *a, const struct item *b)
{
    enum share s = SHARE_NONE;
    for (int i = 0; i < a->n_key; i++)
        for (int k = 0; k < b->n_key; k++) {
            bool may = a->key[i][0] == '?' || b->key[k][0] == '?';
            if (strcmp(a->key[i] + (a->key[i][0] == '?'), b->key[k] + (b->key[k][0] == '?')) == 0)
                s = MAX(s, may ? SHARE_MAY : SHARE_MUST);
        }
    return s;
}

/* The unit that a text carries; NULL: none. */
static const char *unit_of(const char *text)
{
    static const char *const units[] = { "\\%", "^\\circ", " \\text{ cm}", "\\text{ units}" };
    for (size_t i = 0; i < ARRAY_SIZE(units); i++)
        if (strstr(text, units[i]))
            return units[i];
    return NULL;
}

/* Does each carry a unit, and not the same one? Then the numbers alone do not make them equal. */
static bool units_differ(const char *a, const char *b)
{
    const char *of_a = unit_of(a), *of_b = unit_of(b);
    return of_a && of_b && of_a != of_b;
}

/* splitmix64: the same golds every time */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int64_t between(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(random_next(state) % (uint64_t)(hi - lo + 1));
}

/* ---- golds ---- */

static void gold_make(struct items *l, int kind, uint64_t *r)
{
    char t[160];
    int64_t a = between(r, -12, 60), b = between(r, 1, 12), c = between(r, 2, 9);
    int64_t A = a, B = b, C = c;
    char letter = (char)('a' + between(r, 0, 25));
    struct item *it;
    switch (kind) {
    case 0:    // integers, most of them small
        snprintf(t, sizeof t, "%" PRId64, A);
        key_rational(add(l, t), "q", a, 1);
        break;
    case 1:
        snprintf(t, sizeof t, "\\frac{%" PRId64 "}{%" PRId64 "}", A, B);
        key_rational(add(l, t), "q", a, b);
        break;
    case 2:
        snprintf(t, sizeof t, "%s%" PRId64 ".%02" PRId64, a < 0 ? "-" : "", A < 0 ? -A : A, B);
        key_rational(add(l, t), "q", (A < 0 ? -A : A * 100 + b) * (a < 0 ? -1 : 1), 100);
        break;
    case 3:    // 7 is not a square, and c is its multiplier
        snprintf(t, sizeof t, "%" PRId64 "\\sqrt{7}", C);
        key(add(l, t), "root7:%" PRId64, C);
        break;
    case 4:
        snprintf(t, sizeof t, "\\frac{%" PRId64 "\\pi}{%" PRId64 "}", B, C);
        key_rational(add(l, t), "pi", b, c);
        break;
    case 5:    // 10% is the number 1/10, and the 10 of a question that asks for percent
        snprintf(t, sizeof t, "%" PRId64 "\\%%", A < 0 ? -A : A);
        it = add(l, t);
        key_rational(it, "q", A < 0 ? -A : A, 100);
        key_rational(it, "q", A < 0 ? -A : A, 1);
        break;
    case 6:    // an angle is its number, or its radians
        snprintf(t, sizeof t, "%" PRId64 "^\\circ", A < 0 ? -A : A);
        it = add(l, t);
        key_rational(it, "q", A < 0 ? -A : A, 1);
        if (a != 0)
            key_rational(it, "pi", A < 0 ? -A : A, 180);
        break;
    case 7:
        snprintf(t, sizeof t, "%" PRId64 " \\text{ cm}", A < 0 ? -A : A);
        key_rational(add(l, t), "q", A < 0 ? -A : A, 1);
        break;
    case 8:
        snprintf(t, sizeof t, "(%" PRId64 ", %" PRId64 ")", A, A + B);
        key(add(l, t), "pair:%" PRId64 ",%" PRId64, A, A + B);
        break;
    case 9:
        snprintf(t, sizeof t, "[%" PRId64 ", %" PRId64 "]", A, A + B);
        key(add(l, t), "closed:%" PRId64 ",%" PRId64, A, A + B);
        break;
    case 10:
        snprintf(t, sizeof t, "(-\\infty, %" PRId64 ")", A);
        key(add(l, t), "below:%" PRId64, A);
        break;
    case 11:
        snprintf(t, sizeof t, "[%" PRId64 ", \\infty)", A);
        key(add(l, t), "from:%" PRId64, A);
        break;
    case 12:
        snprintf(t, sizeof t, "\\{%" PRId64 ", %" PRId64 "\\}", A, A + B);
        key(add(l, t), "set:%" PRId64 ",%" PRId64, A, A + B);
        break;
    case 13:
        snprintf(t, sizeof t, "%c", letter);
        key(add(l, t), letter == 'e' ? "exp:1" : letter == 'i' ? "imaginary:1" : "?letter:%c", letter);
        break;
    case 14:
        snprintf(t, sizeof t, "%" PRId64 "%c + %" PRId64, C, letter == 'e' || letter == 'i' ? 'x' : letter, B);
        key(add(l, t), "linear:%s", t);
        break;
    case 15:
        snprintf(t, sizeof t, "%c = %" PRId64, letter, A);
        it = add(l, t);
        key_rational(it, "named", a, 1);
        key_rational(it, "?q", a, 1);
        break;
    case 16:
        snprintf(t, sizeof t, "y = %" PRId64 "x %+" PRId64, C, A);
        key(add(l, t), "line:%" PRId64 ",%" PRId64, C, A);
        break;
    case 17:
        snprintf(t, sizeof t, "x^2 + %" PRId64 "y^2 = %" PRId64, C, B);
        key(add(l, t), "conic:%" PRId64 ",%" PRId64, C, B);
        break;
    case 18:
        snprintf(t, sizeof t, "\\begin{pmatrix} %" PRId64 " & %" PRId64 " \\\\ %" PRId64 " & %" PRId64 " \\end{pmatrix}", A, B, C, A + 1);
        key(add(l, t), "matrix:%" PRId64 ",%" PRId64 ",%" PRId64, A, B, C);
        break;
    case 19:
        snprintf(t, sizeof t, "%" PRId64 " + %" PRId64 "i", A, C);
        key(add(l, t), "complex:%" PRId64 ",%" PRId64, A, C);
        break;
    case 20:
        snprintf(t, sizeof t, "e^{%" PRId64 "}", B);
        key(add(l, t), "exp:%" PRId64, B);
        break;
    case 21:
        snprintf(t, sizeof t, "\\ln %" PRId64, C);
        key(add(l, t), "ln:%" PRId64, C);
        break;
    case 22:
        snprintf(t, sizeof t, "x > %" PRId64, A);
        key(add(l, t), "above:%" PRId64, A);
        break;
    case 23:
        snprintf(t, sizeof t, "%" PRId64 "\\pi + %" PRId64 "k\\pi, k \\in \\mathbb{Z}", C, B);
        key(add(l, t), "family:%" PRId64 ",%" PRId64, C, B);
        break;
    case 24:
        snprintf(t, sizeof t, "%" PRId64 ", %" PRId64 ", %" PRId64, A, A, A + B);
        key(add(l, t), "list:%" PRId64 ",%" PRId64 ",%" PRId64, A, A, A + B);
        break;
    case 25:
        snprintf(t, sizeof t, "f(%c) = %" PRId64, letter == 'e' || letter == 'i' ? 'x' : letter, A);
        it = add(l, t);
        key_rational(it, "named", a, 1);
        key_rational(it, "?q", a, 1);
        break;
    case 26:
        snprintf(t, sizeof t, "x \\equiv %" PRId64 " \\pmod{%" PRId64 "}", B, B + C);
        key(add(l, t), "residue:%" PRId64 ",%" PRId64, B, B + C);
        break;
    case 27:
        snprintf(t, sizeof t, "%" PRId64 " \\times 10^{-%" PRId64 "}", C, B + 3);
        key(add(l, t), "tiny:%" PRId64 ",%" PRId64, C, B);
        break;
    }
}
#define GOLD_KINDS 28

static void golds_make(struct items *l, int each)
{
    // clang-format off
    static const struct { const char *text, *key; } fixed[] = {
        { "\\infty", "inf:+" }, { "-\\infty", "inf:-" }, { "\\emptyset", "set:" }, { "\\mathbb{R}", "set:R" },
        { "(-\\infty, \\infty)", "set:R" }, { "\\mathbb{Z}", "set:Z" }, { "\\mathbb{N}", "set:N" },
        { "\\text{yes}", "word:yes" }, { "\\text{no}", "word:no" }, { "\\text{none}", "word:none" },
        { "\\text{increasing}", "word:increasing" }, { "\\text{undefined}", "word:undefined" },
        { "\\text{A}", "letter:a" }, { "\\text{B}", "letter:b" }, { "\\text{C}", "letter:c" }, { "ABC", "word:ABC" },
        { "\\pm 2", "set:-2,2" }, { "3:4", "q:3/4" }, { "\\sin x", "sin" }, { "\\sqrt{x^2+1}", "root" }, { "x^2", "sq" },
        { "\\int_0^1 f(x)\\,dx", "int" }, { "\\frac{a}{b}", "a/b" }, { "n!", "n!" }, { "\\binom{n}{2}", "binom" },
        { "3N", "3N" }, { "\\gcd(a,b)", "gcd" }, { "\\vec{a} \\cdot \\vec{b}", "ab" }, { "k\\pi", "kpi" },
    };
    // clang-format on
    uint64_t r = 20;
    for (int kind = 0; kind < GOLD_KINDS; kind++)
        for (int i = 0; i < each; i++)
            gold_make(l, kind, &r);
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
        key(add(l, fixed[i].text), "%s", fixed[i].key);
}

/* ---- answers ---- */

/* Dresses of a whole number, %d; each is worth the number and what the second key says. */
static void answers_numbers(struct items *l)
{
    // clang-format off
    static const struct { const char *format; int percent, degree; } dress[] = {
        { "%d", 0, 0 }, { "+%d", 0, 0 }, { "%d.0", 0, 0 }, { "\\frac{%d}{1}", 0, 0 }, { "x=%d", 0, 0 },
        { "\\{%d\\}", 0, 0 }, { "(%d)", 0, 0 }, { "%d\\text{ units}", 0, 0 }, { "%d\\%%", 1, 0 }, { "%d^\\circ", 0, 1 },
        { "\\text{The value is }%d", 0, 0 }, { "f(1)=%d", 0, 0 }, { "|%d|", 0, 0 }, { "%d=%d", 0, 0 }, { "%d^1", 0, 0 },
        { "\\max(%d,%d)", 0, 0 }, { "\\lim_{x\\to 0}%d", 0, 0 }, { "\\int %d", -1, 0 },
    };
    // clang-format on
    for (int v = 0; v <= 10; v++)
        for (size_t i = 0; i < ARRAY_SIZE(dress); i++) {
            char t[96];
            snprintf(t, sizeof t, dress[i].format, v, v);
            struct item *it = add(l, t);
            if (dress[i].percent < 0)    // not evaluated
                continue;
            key_rational(it, "q", v, 1);
            if (!strchr(t, '='))    // an equation may be another one than the gold's
                key_rational(it, "named", v, 1);
            if (dress[i].percent)
                key_rational(it, "q", v, 100);
            if (dress[i].degree && v > 0)
                key_rational(it, "pi", v, 180);
        }
    for (int n = -7; n <= 7; n++)
        for (int d = 1; d <= 4; d++) {
            char t[64];
            snprintf(t, sizeof t, "%d/%d", n, d);
            key_rational(add(l, t), "q", n, d);
        }
}

static void answers_letters(struct items *l)
{
    static const char *const applied[] = {
        "%c(0)", "%c(1)", "%c(2-2)", "%c\\left(0\\right)", "%c(\\infty)", "%c(3)", "\\frac{%c(1)}{%c(1)}-1"
    };
    for (char c = 'a'; c <= 'z'; c++) {
        char t[64] = { c };
        key(add(l, t), c == 'e' ? "exp:1" : c == 'i' ? "imaginary:1" : "?letter:%c", c);
        for (size_t i = 0; i < ARRAY_SIZE(applied); i++) {
            if (c == 'e' || c == 'i' || (i == 6 && c != 'f'))    // numbers; f(1)/f(1) - 1 is 0 by any reading
                continue;
            snprintf(t, sizeof t, applied[i], c, c);
            struct item *it = add(l, t);
            if (i == 2 || i == 6)    // a product where the gold has the letter
                key(it, i == 2 ? "?q:0/1" : "q:0/1");
        }
    }
    for (char c = 'A'; c <= 'F'; c++) {
        char t[64];
        static const char *const wrap[] = { "%c", "\\text{%c}", "(%c)", "\\textbf{(%c)}" };
        for (size_t i = 0; i < ARRAY_SIZE(wrap); i++) {
            snprintf(t, sizeof t, wrap[i], c);
            struct item *it = add(l, t);
            key(it, "letter:%c", c | 32);    // words are compared without case
            if (c == 'E')
                key(it, "?exp:1");
        }
    }
}

/* What has no value or says nothing: worth nothing at all. */
// clang-format off
static const char *const worthless[] = {
    "", " ", "{}", "()", "[]", ",", ";", ".", "?", "!", "-", "+", "=", "\\", "\\\\", "$", "$$", "$ $", "\\,", "\\quad", "&",
    "\\text{}", "\\text{ }", "\\boxed{}", "\\mathrm{}", "\\left(\\right)", "\\frac{}{}", "\\sqrt{}", "{{}}", "\\_", "^", "_",
    "\\infty-\\infty", "0\\cdot\\infty", "\\infty\\cdot 0", "\\infty/\\infty", "\\frac{\\infty}{\\infty}", "\\infty^0",
    "1^\\infty", "\\frac{0}{0}", "0/0", "1/0", "\\frac{x}{0}", "0^0", "\\ln 0", "\\ln 0-\\ln 0", "\\frac{\\ln 0}{\\ln 0}",
    "0\\cdot\\ln 0", "\\tan\\frac{\\pi}{2}", "0\\cdot\\tan\\frac{\\pi}{2}", "\\frac{0}{0}-\\frac{0}{0}", "(-1)!", "0\\cdot(-1)!",
    "\\log_1 1", "\\log_0 0", "\\infty-\\infty+5", "\\frac{\\infty-\\infty}{2}", "x-\\infty+\\infty", "\\sqrt[0]{1}",
    "5\\bmod 0", "0\\cdot\\frac{1}{0}", "\\frac{x-x}{x-x}", "\\frac{x-x}{0}",
    "a=a", "x=x", "y=y", "x+y=y+x", "2x=x+x", "f(x)=f(x)", "x\\le x", "x<x+1", "x\\ne x+1", "x=x+1",
    "1<2", "0<1", "0\\le 0", "1\\ne 2", "a=b=a", "a\\equiv a", "x\\equiv x\\pmod 1",
    "1=2", "3+2=4", "0=1", "5=7", "\\cos\\pi=0", "\\sqrt2\\approx1.7", "2=3=4", "1\\approx 2", "0\\approx 5", "0.1=0.2", "0.5\\approx1", "100\\approx101", "x=x+5", "1000=1001",
    
    "0,1,2,3,4,5,6,7,8,9", "\\{0,1,2,3,4,5,6,7,8,9\\}", 
    "0\\le x\\le 100", "-100\\le x\\le 100", "x\\ge -1000", "[0,1000]", "1,2,\\ldots", "\\ldots", "1,\\ldots,100",
    "a,b,c,d,e", "x,y,z", "\\{x\\mid x=x\\}", "\\{x : x\\}",
    "9^{9^{9^9}}", "10^{10^{10}}!", "\\sum_{k=1}^{\\infty}a_k", "\\prod_{k=1}^{\\infty}1", "\\int f", "\\lim_{x\\to a}f(x)",
    "\\text{the answer}", "\\text{answer}", "\\text{correct}", "\\text{gold}", "\\text{true}", "\\text{any}", "\\text{all}",
    "\\text{cannot be determined}", "\\text{see above}", "\\text{NaN}", "NaN", "nan", "null", "\\text{number}", "*", ".*", "%",
    "\\%", "\\circ", "^\\circ", "\\text{cm}", "\\mathrm{cm}", "\\pm", "\\pm\\infty", "\\mp x", "|", "||", "\\cdot", "1:1:1",
    "\\begin{pmatrix}\\end{pmatrix}", "\\begin{pmatrix}&\\\\&\\end{pmatrix}", "\\begin{cases}\\end{cases}", "()()", "(,)", "[,]",
    "(-\\infty,-\\infty)", "(\\infty,\\infty)", "gt\\_answer", "\\text{gt\\_answer}", "\\phantom{5}", "\\label{5}", "\\square",
    "\\frac{d}{dx}f(x)", "\\frac{d}{dx}", "\\frac{dx}{dx}", "f", "f^{-1}(x)", "\\overline{z}-z", "\\gcd()", "\\max()", "\\deg f",
};
// clang-format on

static void answers_make(struct items *l)
{
    // clang-format off
    static const struct { const char *text, *key[KEYS_MAX]; } valued[] = {
        { "\\infty", { "inf:+" } }, { "+\\infty", { "inf:+" } }, { "2\\infty", { "inf:+" } }, { "-\\infty", { "inf:-" } },
        { "\\infty+1", { "inf:+" } }, { "1/\\infty", { "q:0/1" } }, { "\\emptyset", { "set:" } }, { "\\{\\}", { "set:" } },
        { "\\mathbb{R}", { "set:R" } }, { "(-\\infty,\\infty)", { "set:R" } }, { "x\\in\\mathbb{R}", { "set:R" } },
        { "x<\\infty", { "set:R" } }, { "-\\infty<x<\\infty", { "set:R" } }, { "\\text{all real numbers}", { "set:R" } },
        { "n\\in\\mathbb{Z}", { "set:Z" } }, { "k\\in\\mathbb{N}", { "set:N" } }, { "x>\\infty", { "set:" } },
        { "x<-\\infty", { "set:" } }, { "\\infty<x", { "set:" } }, { "\\sin^2x+\\cos^2x=1", { "q:1/1" } },
        { "\\mathbb{Z}", { "set:Z" } }, { "\\mathbb{N}", { "set:N" } }, { "x\\in\\mathbb{Z}", { "set:Z" } },
        { "0\\text{ or }1", { "pair:0,1", "set:0,1" } }, { "1\\text{ and }2\\text{ and }3", { "set:1,2,3" } },
        { "x-x", { "q:0/1" } }, { "0x", { "q:0/1" } }, { "x^0", { "q:1/1" } }, { "\\frac{x}{x}", { "q:1/1" } },
        { "0=0", { "q:0/1" } }, { "2+3=5", { "q:5/1" } }, { "\\pi", { "pi:1/1" } }, { "2\\pi", { "pi:2/1" } },
        { "\\frac{\\pi}{2}", { "pi:1/2" } }, { "e", { "exp:1" } }, { "i^2", { "q:-1/1" } }, { "e^{i\\pi}", { "q:-1/1" } },
        { "(0,1)", { "pair:0,1" } }, { "0<x<1", { "pair:0,1" } }, { "[0,1]", { "closed:0,1" } }, { "(0,0)", { "none" } },
        { "1,2", { "pair:1,2", "set:1,2" } }, { "\\{1,2\\}", { "set:1,2", "pair:1,2" } }, { "x>0", { "above:0" } },
        { "(-\\infty,0)", { "below:0" } }, { "x<0", { "below:0" } }, { "[0,\\infty)", { "from:0" } }, { "\\pm1", { "set:-1,1" } },
        { "\\pm 2", { "set:-2,2", "pair:-2,2" } }, { "y=x", { "?letter:x" } }, { "None", { "word:none" } }, { "||x||", { "none" } }, { "2x+1", { "linear:2x + 1" } },
        { "yes", { "word:yes" } }, { "no", { "word:no" } }, { "none", { "word:none" } }, { "undefined", { "word:undefined" } },
        { "\\text{increasing}", { "word:increasing" } }, { "x^2", { "sq" } }, { "\\sqrt{7}", { "none" } }, { "1:2", { "q:1/2" } },
        { "50\\%", { "q:1/2", "q:50/1" } }, { "\\frac{n!}{1}", { "n!" } }, { "\\lfloor 0.5\\rfloor", { "q:0/1" } },
    };
    // clang-format on
    answers_numbers(l);
    answers_letters(l);
    for (size_t i = 0; i < ARRAY_SIZE(worthless); i++)
        add(l, worthless[i]);
    for (size_t i = 0; i < ARRAY_SIZE(valued); i++) {
        struct item *it = add(l, valued[i].text);
        for (int k = 0; k < KEYS_MAX && valued[i].key[k]; k++)
            key(it, "%s", valued[i].key[k]);
    }
}

static struct items items_new(void)
{
    struct items l = { .item = calloc(ITEMS_MAX, sizeof *l.item) };
    assert_non_null(l.item);
    return l;
}

static struct math *scratch(void)
{
    struct error err = { 0 };
    struct math_config config = MATH_CONFIG_DEFAULT;
    struct math *m = math_new(&config, &err);
    assert_non_null(m);
    return m;
}

static bool equal(struct math *m, const char *gold, const char *pred, struct math_result *r)
{
    math_answer(m, pred, strlen(pred), gold, strlen(gold), r);
    return r->verdict == VERDICT_EQUAL;
}

static void an_answer_solves_only_golds_of_its_value(UNUSED void **state)
{
    struct items golds = items_new(), answers = items_new();
    struct math *m = scratch();
    struct math_result r;
    int wrong = 0, missed = 0, right = 0;
    golds_make(&golds, 40);
    answers_make(&answers);
    for (int a = 0; a < answers.n; a++)
        for (int g = 0; g < golds.n; g++) {
            const struct item *pred = &answers.item[a], *gold = &golds.item[g];
            bool same = equal(m, gold->text, pred->text, &r);
            enum share want = share_key(pred, gold);
            right += same && want;
            if (same && want == SHARE_NONE && strcmp(pred->text, gold->text) != 0 && wrong++ < 40)
                print_error("'%s' solves '%s' by '%s'\n", pred->text, gold->text, r.rule);
            if (!same && want == SHARE_MUST && !units_differ(pred->text, gold->text) && missed++ < 40)
                print_error("'%s' does not solve '%s': '%s'\n", pred->text, gold->text, r.rule);
        }
    print_message("%d answers, %d golds, %d equal pairs\n", answers.n, golds.n, right);
    assert_int_equal(wrong, 0);
    assert_int_equal(missed, 0);
    assert_in_range(right, 1000, 1000000);    // the golds are such that answers do solve them
    math_free(m);
    free(golds.item);
    free(answers.item);
}

static int suite_read(struct items *golds, const char *name)
{
    struct buf text = BUF_INIT;
    struct error err = { 0 };
    char path[512];
    snprintf(path, sizeof path, "%s/golden/math/%s", TEST_DATA_DIR, name);
    assert_true(file_read(&text, path, 1 << 24, &err));
    for (char *s = text.data, *next; s && *s; s = next) {
        next = strchr(s, '\n');
        json_t *row = json_loadb(s, next ? (size_t)(next - s) : strlen(s), 0, NULL);
        assert_non_null(row);
        const char *gold = json_string_value(json_object_get(row, "gold"));
        bool known = strlen(gold) >= sizeof golds->item[0].text
                     || strstr(gold, "\\int");    // short ones, each once; an integral takes up to 20 ms
        for (int i = 0; i < golds->n && !known; i++)
            known = strcmp(golds->item[i].text, gold) == 0;
        if (!known)
            add(golds, gold);
        json_decref(row);
        next = next ? next + 1 : NULL;
    }
    buf_release(&text);
    return golds->n;
}

static void no_answer_solves_more_of_the_suites_than_its_share(UNUSED void **state)
{
    struct items golds = items_new(), answers = items_new();
    struct math *m = scratch();
    struct math_result r;
    int over = 0;
    suite_read(&golds, "answers.jsonl");
    assert_in_range(suite_read(&golds, "math_verify_suite.jsonl"), 400, ITEMS_MAX);
    answers_make(&answers);
    for (int a = 0; a < answers.n; a++) {
        struct item *pred = &answers.item[a];
        for (int g = 0; g < golds.n; g++) {
            if (strcmp(pred->text, golds.item[g].text) == 0 || !equal(m, golds.item[g].text, pred->text, &r))
                continue;
            pred->solved++;
            if (pred->n_key == 0 && over++ < 40)
                print_error("'%s', which is worth nothing, solves '%s' by '%s'\n", pred->text, golds.item[g].text, r.rule);
        }
        if (pred->solved > SHARE_MAX * golds.n && over++ < 40)
            print_error("'%s' solves %d of %d\n", pred->text, pred->solved, golds.n);
    }
    assert_int_equal(over, 0);
    math_free(m);
    free(golds.item);
    free(answers.item);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_solves_only_golds_of_its_value),
        cmocka_unit_test(no_answer_solves_more_of_the_suites_than_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
