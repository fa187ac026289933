#include "workers/reward/math/math.h"
#include <gmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "workers/reward/answer.h"

#define NUMBER_MAX 512     // digits of a number
#define TEXT_MAX 65536     // bytes of an answer
struct math {
    struct math_config config;
    char pred[TEXT_MAX], gold[TEXT_MAX];    // the two texts without what means nothing
};

struct math *math_new(const struct math_config *config, struct error *err)
{
    struct math *m = calloc(1, sizeof *m);
    if (!m)
        error_set(err, ERR_NO_MEMORY, "no memory for the mathematics");
    else
        m->config = *config;
    return m;
}

void math_free(struct math *m)
{
    free(m);
}

/* Copy s without white space, $, {,} braces of boxes, \left, \right, \! and commas between thousands. */
static bool text_clean(char *out, struct span s)
{
    static const char *const drop[] = { "\\left", "\\right", "\\!", "\\,", "\\;", "\\ ", "\\$", "$" };
    static const struct { const char *from, *to; } swap[] = { { "\\dfrac", "\\frac" }, { "\\tfrac", "\\frac" } };
    size_t n = 0;
    struct span box;
    if (s.len >= TEXT_MAX)
        return false;
    if (s.len > 7 && memcmp(s.s, "\\boxed{", 7) == 0 && answer_boxed(s.s, s.len, &box))
        s = box;
    for (size_t i = 0; i < s.len;) {
        size_t k, len = 0;
        for (k = 0; k < ARRAY_SIZE(drop); k++) {
            len = strlen(drop[k]);
            if (s.len - i >= len && memcmp(s.s + i, drop[k], len) == 0)
                break;
        }
        if (k < ARRAY_SIZE(drop)) {
            i += len;
            continue;
        }
        for (k = 0; k < ARRAY_SIZE(swap); k++) {
            len = strlen(swap[k].from);
            if (s.len - i >= len && memcmp(s.s + i, swap[k].from, len) == 0)
                break;
        }
        if (k < ARRAY_SIZE(swap)) {
            memcpy(out + n, swap[k].to, strlen(swap[k].to));
            n += strlen(swap[k].to);
            i += len;
            continue;
        }
        if (s.s[i] != ' ' && s.s[i] != '\n' && s.s[i] != '\t')
            out[n++] = s.s[i];
        i++;
    }
    while (n > 0 && out[n - 1] == '.')
        n--;
    out[n] = 0;
    return true;
}

/* An unsigned decimal with thousands separators at *p into q; moves *p behind it. */
static bool decimal_read(const char **p, mpq_t q)
{
    char digits[NUMBER_MAX + 2];
    size_t n = 0, decimals = 0, group = 0;
    bool point = false, comma = false;
    const char *s = *p;
    for (; n < NUMBER_MAX; s++) {
        if (*s >= '0' && *s <= '9') {
            digits[n++] = *s;
            decimals += point;
            group++;
        } else if (*s == '.' && !point && (!comma || group == 3)) {
            point = true;
        } else if (*s == ',' && !point && n > 0 && (comma ? group == 3 : group <= 3)) {
            comma = true;
            group = 0;
        } else {
            break;
        }
    }
    if (n == 0 || n == NUMBER_MAX || (comma && !point && group != 3))
        return false;
    digits[n] = 0;
    mpz_set_str(mpq_numref(q), digits, 10);
    mpz_ui_pow_ui(mpq_denref(q), 10, decimals);
    mpq_canonicalize(q);
    *p = s;
    return true;
}

/* A number: [-]d, d/d, \frac{d}{d}, \frac12. */
static bool number_read(const char *s, mpq_t q)
{
    bool ok = false, minus = *s == '-';
    mpq_t den;
    mpq_init(den);
    s += minus;
    if (strncmp(s, "\\frac{", 6) == 0) {
        s += 6;
        bool inner = *s == '-';
        s += inner;
        minus ^= inner;
        if (decimal_read(&s, q) && strncmp(s, "}{", 2) == 0)
            ok = (s += 2, decimal_read(&s, den)) && strcmp(s, "}") == 0;
    } else if (strncmp(s, "\\frac", 5) == 0) {
        ok = s[5] >= '0' && s[5] <= '9' && s[6] >= '0' && s[6] <= '9' && !s[7];
        if (ok) {
            mpq_set_ui(q, (unsigned)(s[5] - '0'), 1);
            mpq_set_ui(den, (unsigned)(s[6] - '0'), 1);
        }
    } else if (decimal_read(&s, q)) {
        mpq_set_ui(den, 1, 1);
        ok = !*s || (*s == '/' && (s++, decimal_read(&s, den)) && !*s);
    }
    ok = ok && mpq_sgn(den) != 0;
    if (ok)
        mpq_div(q, q, den);
    if (ok && minus)
        mpq_neg(q, q);
    mpq_clear(den);
    return ok;
}

static void text_cut(char out[256], const char *s, size_t len)
{
    size_t n = MIN(len, 255u);
    while (n > 0 && n < len && ((unsigned char)s[n] & 0xc0) == 0x80)
        n--;
    memcpy(out, s, n);
    out[n] = 0;
}

/* The seeds' second chance: the same text without spaces, braces and commas. */
static bool text_same(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "{},");
        b += strspn(b, "{},");
        if (*a != *b)
            return false;
        if (!*a)
            return true;
    }
}

void math_answer(struct math *m, const char *pred, size_t pred_len, const char *gold, size_t gold_len,
                 struct math_result *out)
{
    struct span p = span_trim((struct span){ pred, pred_len }), g = span_trim((struct span){ gold, gold_len });
    mpq_t a, b;
    *out = (struct math_result){ .verdict = VERDICT_DIFFERENT, .rule = "text" };
    text_cut(out->pred, p.s, p.len);
    text_cut(out->gold, g.s, g.len);
    if (!text_clean(m->gold, g)) {
        out->verdict = VERDICT_CANNOT_TELL;
        out->rule = "gt_answer is too long";
        return;
    }
    if (!text_clean(m->pred, p)) {
        out->rule = "answer is too long";
        return;
    }
    mpq_inits(a, b, NULL);
    out->pred_parsed = number_read(m->pred, a);
    out->gold_parsed = number_read(m->gold, b);
    if (out->pred_parsed && out->gold_parsed) {
        out->rule = "rational";
        out->verdict = mpq_equal(a, b) ? VERDICT_EQUAL : VERDICT_DIFFERENT;
    } else if (text_same(m->pred, m->gold)) {
        out->verdict = VERDICT_EQUAL;
        out->pred_parsed = true;    // the same text as a gt_answer that is no number either: a full match
    }
    mpq_clears(a, b, NULL);
}

void math_response(struct math *m, const char *response, size_t response_len, const char *gold, size_t gold_len,
                   struct math_result *out)
{
    struct span s = { response, response_len };
    answer_boxed(response, response_len, &s);
    math_answer(m, s.s, s.len, gold, gold_len, out);
}
