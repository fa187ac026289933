#include "workers/engine/reward/sandbox/number.h"
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/macros.h"

#define LEN_MAX 400     // of a number that is read as a double; longer ones are texts
#define EXP_MAX 9999    // a larger exponent is beyond a double

struct number {
    bool negative, whole, infinite;
    const char *digits;       // from the first digit or the point; borrowed
    size_t n_digits;          // up to the exponent, the point included
    int64_t n_before, exp;    // digits before the point, and the exponent
};

static bool number_scan(struct number *n, const char *text, size_t len)
{
    size_t at = 0, n_digit = 0;
    bool point = false;
    *n = (struct number){ .whole = true };
    if (at < len && (text[at] == '+' || text[at] == '-'))
        n->negative = text[at++] == '-';
    n->infinite = (len - at == 3 && strncasecmp(text + at, "inf", 3) == 0) || (len - at == 8 && strncasecmp(text + at, "infinity", 8) == 0);
    if (n->infinite) {
        n->whole = false;
        return true;
    }
    n->digits = text + at;
    for (; at < len && (isdigit((unsigned char)text[at]) || (text[at] == '.' && !point)); at++) {
        point = point || text[at] == '.';
        n_digit += text[at] != '.';
        n->n_before += !point;
    }
    n->n_digits = (size_t)(text + at - n->digits);
    n->whole = !point;
    if (n_digit > 0 && at < len && (text[at] == 'e' || text[at] == 'E')) {
        n->whole = false;
        bool down = ++at < len && text[at] == '-';
        at += at < len && (text[at] == '-' || text[at] == '+');
        if (at == len)
            return false;
        for (; at < len && isdigit((unsigned char)text[at]); at++)
            n->exp = n->exp > EXP_MAX ? n->exp : 10 * n->exp + (text[at] - '0');
        n->exp = down ? -n->exp : n->exp;
    }
    return n_digit > 0 && at == len;
}

bool number_is(const char *text, size_t len)
{
    struct number n;
    return number_scan(&n, text, len);
}

bool number_is_close(double got, double expected)
{
    return got == expected || (isfinite(got) && isfinite(expected) && fabs(got - expected) <= 1e-8 + 1e-5 * fabs(expected));
}

/* The digit of n at 10^place; 0 where none is written. */
static char digit_at(const struct number *n, int64_t place)
{
    int64_t i = n->n_before + n->exp - 1 - place;    // from the left, without the point
    if (i >= n->n_before)
        i++;
    return i < 0 || i >= (int64_t)n->n_digits ? '0' : n->digits[i];
}

/* Exactly, digit by digit: doubles end at 2^53. */
static bool value_same(const struct number *a, const struct number *b)
{
    int64_t high = MAX(a->n_before + a->exp, b->n_before + b->exp);
    int64_t low = MIN(a->exp, b->exp) - (int64_t)MAX(a->n_digits, b->n_digits);
    bool zero = true;
    if (a->infinite || b->infinite || MAX(a->exp, b->exp) > EXP_MAX || MIN(a->exp, b->exp) < -EXP_MAX)
        return false;
    for (int64_t place = low; place < high; place++) {
        if (digit_at(a, place) != digit_at(b, place))
            return false;
        zero = zero && digit_at(a, place) == '0';
    }
    return zero || a->negative == b->negative;
}

/* False: not within a double. */
static bool double_read(const struct number *n, const char *text, size_t len, double *out)
{
    char copy[LEN_MAX];
    if (len >= sizeof copy)
        return false;
    memcpy(copy, text, len);
    copy[len] = 0;
    *out = strtod(copy, NULL);
    return n->infinite || isfinite(*out);
}

bool number_equal(const char *got, size_t got_len, const char *expected, size_t expected_len)
{
    struct number g, e;
    double a, b;
    if (got_len == expected_len && memcmp(got, expected, got_len) == 0)
        return true;
    if (!number_scan(&g, got, got_len) || !number_scan(&e, expected, expected_len) || (g.whole && e.whole))
        return false;
    if (e.whole)
        return value_same(&g, &e);
    return double_read(&g, got, got_len, &a) && double_read(&e, expected, expected_len, &b) && number_is_close(a, b);
}
