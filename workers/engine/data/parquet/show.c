#include "workers/engine/data/parquet/show.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"

#define DAY_S 86400
#define DECIMAL_BYTES_MAX 64

static void hex_show(struct buf *out, const uint8_t *p, size_t len)
{
    char *to = buf_reserve(out, 2 * len + 2);
    if (!to)
        return;
    *to++ = '"';
    for (size_t i = 0; i < len; i++) {
        *to++ = "0123456789abcdef"[p[i] >> 4];
        *to++ = "0123456789abcdef"[p[i] & 15];
    }
    *to = '"';
    out->len += 2 * len + 2;
    out->data[out->len] = 0;
}

static void text_show(struct buf *out, const uint8_t *p, size_t len)
{
    if (utf8_valid_len(p, len, NULL, NULL) == len)
        json_text_print(out, (const char *)p, len, JSON_TEXT_UTF8);
    else
        hex_show(out, p, len);
}

static void number_show(struct buf *out, double v)
{
    if (isfinite(v))
        json_number_print(out, v);
    else
        buf_str(out, "null");
}

static double half_value(const uint8_t *p)
{
    unsigned bits = (unsigned)p[0] | (unsigned)p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double v = exponent == 0 ? ldexp(fraction, -24) : exponent < 31 ? ldexp(fraction + 1024.0, (int)exponent - 25) : NAN;
    return bits & 0x8000 ? -v : v;
}

/* Days since 1970-01-01 as YYYY-MM-DD; Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. */
static void date_show(struct buf *out, int64_t days)
{
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153, day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    buf_fmt(out, "%04" PRId64 "-%02" PRId64 "-%02" PRId64, yoe + era * 400 + (month <= 2), month, day);
}

/* A time of day in nanoseconds: no fraction, or one of 6 or 9 digits. */
static void time_show(struct buf *out, int64_t ns)
{
    int64_t s = ns / 1000000000, rest = ns % 1000000000;
    buf_fmt(out, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600, s / 60 % 60, s % 60);
    if (rest % 1000)
        buf_fmt(out, ".%09" PRId64, rest);
    else if (rest)
        buf_fmt(out, ".%06" PRId64, rest / 1000);
}

static int64_t power_of_ten(int n)
{
    int64_t v = 1;
    while (n-- > 0)
        v *= 10;
    return v;
}

static void timestamp_show(struct buf *out, int64_t days, int64_t ns, bool is_utc)
{
    buf_char(out, '"');
    date_show(out, days);
    buf_char(out, 'T');
    time_show(out, ns);
    buf_str(out, is_utc ? "+00:00\"" : "\"");
}

/* An integer of len bytes, two's complement, highest first, with a point before the last scale digits. */
static void decimal_show(struct buf *out, const uint8_t *p, size_t len, int scale)
{
    uint8_t v[DECIMAL_BYTES_MAX];
    char digits[DECIMAL_BYTES_MAX * 3 + 128];    // the last is at the front
    int n = 0;
    bool negative = len > 0 && p[0] & 0x80;
    if (len > DECIMAL_BYTES_MAX) {
        hex_show(out, p, len);
        return;
    }
    memcpy(v, p, len);
    for (size_t i = len, carry = 1; negative && i-- > 0; carry = carry && v[i] == 0)
        v[i] = (uint8_t)(~v[i] + (carry ? 1 : 0));
    for (bool more = true; more || n <= scale;) {
        unsigned rest = 0;
        more = false;
        for (size_t i = 0; i < len; i++) {
            unsigned x = rest << 8 | v[i];
            v[i] = (uint8_t)(x / 10);
            rest = x % 10;
            more |= v[i] != 0;
        }
        digits[n++] = (char)('0' + rest);
    }
    buf_str(out, negative ? "\"-" : "\"");
    while (n-- > 0) {
        buf_char(out, digits[n]);
        if (n == scale && scale > 0)
            buf_char(out, '.');
    }
    buf_char(out, '"');
}

static void plain_show(struct buf *out, const struct parquet_node *n, const struct parquet_value *v)
{
    float f;
    double d;
    uint32_t day;
    int64_t ns;
    switch (n->type) {
    case TYPE_BOOLEAN: buf_str(out, v->i ? "true" : "false"); break;
    case TYPE_INT32:
    case TYPE_INT64: buf_fmt(out, "%" PRId64, v->i); break;
    case TYPE_INT96:    // nanoseconds of the day, then the Julian day; 1970-01-01 is 2440588
        memcpy(&ns, v->p, 8);
        memcpy(&day, v->p + 8, 4);
        if (ns >= 0 && ns < DAY_S * INT64_C(1000000000))
            timestamp_show(out, (int64_t)day - 2440588, ns, false);
        else
            hex_show(out, v->p, v->len);
        break;
    case TYPE_FLOAT:
        memcpy(&f, v->p, 4);
        number_show(out, f);
        break;
    case TYPE_DOUBLE:
        memcpy(&d, v->p, 8);
        number_show(out, d);
        break;
    case TYPE_BYTES: text_show(out, v->p, v->len); break;
    case TYPE_FIXED: hex_show(out, v->p, v->len); break;
    }
}

static void uuid_show(struct buf *out, const uint8_t *p)
{
    buf_char(out, '"');
    for (int i = 0; i < 16; i++)
        buf_fmt(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", p[i]);
    buf_char(out, '"');
}

void value_show(struct buf *out, const struct parquet_node *n, const struct parquet_value *v)
{
    uint8_t big[8];
    int64_t unit = power_of_ten(n->per_second), a_day = unit * DAY_S, days = v->i / a_day, rest = v->i % a_day;
    switch (n->show) {
    case SHOW_PLAIN: plain_show(out, n, v); break;
    case SHOW_TEXT: text_show(out, v->p, v->len); break;
    case SHOW_UNSIGNED:
        if (n->type == TYPE_INT32)
            buf_fmt(out, "%" PRIu32, (uint32_t)v->i);
        else    // jansson's integers end at 2^63 - 1
            buf_fmt(out, v->i < 0 ? "\"%" PRIu64 "\"" : "%" PRIu64, (uint64_t)v->i);
        break;
    case SHOW_DECIMAL:
        for (int i = 0; i < 8; i++)
            big[i] = (uint8_t)((uint64_t)v->i >> (56 - 8 * i));
        if (v->p && n->type != TYPE_INT32 && n->type != TYPE_INT64)
            decimal_show(out, v->p, v->len, n->scale);
        else
            decimal_show(out, big, 8, n->scale);
        break;
    case SHOW_DATE:
        buf_char(out, '"');
        date_show(out, v->i);
        buf_char(out, '"');
        break;
    case SHOW_TIME:
        buf_char(out, '"');
        time_show(out, (rest < 0 ? rest + a_day : rest) * (1000000000 / unit));
        buf_char(out, '"');
        break;
    case SHOW_TIMESTAMP: timestamp_show(out, days - (rest < 0), (rest < 0 ? rest + a_day : rest) * (1000000000 / unit), n->is_utc); break;
    case SHOW_HALF: number_show(out, half_value(v->p)); break;
    case SHOW_UUID: uuid_show(out, v->p); break;
    case SHOW_NULL: buf_str(out, "null"); break;
    }
}
