/* tui_chart_test.c - series answer any range exactly; charts show what is known and nothing else */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/record/series.h"
#include "console/tui/widget.h"

static void a_query_equals_looking_at_every_value(UNUSED void **state)
{
    struct series s;
    series_init(&s);
    srand(3);
    float plain[5000];
    for (int i = 0; i < 5000; i++) {
        plain[i] = rand() % 7 == 0 ? NAN : (float)(rand() % 1000);
        assert_true(series_set(&s, i, (double)plain[i]));
    }
    for (int i = 0; i < 500; i++) {    // the same values again
        int at = rand() % 5000;
        plain[at] = (float)(rand() % 1000);
        assert_true(series_set(&s, at, (double)plain[at]));
    }
    for (int round = 0; round < 3000; round++) {
        int a = rand() % 5100 - 50, b = a + rand() % (round % 2 ? 5000 : 40);
        double min = INFINITY, max = -INFINITY, sum = 0;
        int64_t n = 0;
        for (int i = MAX(a, 0); i < MIN(b, 5000); i++)
            if (!isnan(plain[i])) {
                min = fmin(min, (double)plain[i]);
                max = fmax(max, (double)plain[i]);
                sum += (double)plain[i];
                n++;
            }
        struct series_span span = series_query(&s, a, b);
        assert_int_equal(span.n, n);
        assert_true(n == 0 ? isnan(span.min) && isnan(span.mean) : span.min == min && span.max == max);
        if (n > 0)
            assert_true(fabs(span.mean - sum / (double)n) <= 1e-5 * fabs(sum / (double)n));
    }
    series_cut(&s, 100);
    assert_int_equal(series_query(&s, 100, 6000).n, 0);
    assert_true(series_set(&s, 4000, 1));
    assert_int_equal(series_query(&s, 100, 6000).n, 1);    // nothing from before the cut comes back
    series_release(&s);
}

static void what_cannot_be_kept_changes_nothing(UNUSED void **state)
{
    struct series s;
    series_init(&s);
    assert_false(series_set(&s, -1, 1));
    assert_false(series_set(&s, SERIES_MAX, 1));
    assert_int_equal(s.n, 0);
    assert_true(series_set(&s, 3, INFINITY));
    assert_int_equal(series_query(&s, 0, 10).n, 0);
    assert_true(isnan(series_at(&s, 3)) && isnan(series_at(&s, 99)));
    series_release(&s);
}

/* Draw into 8 x 4 cells without axes and return the rows, "/" between them. */
static const char *drawn_below(char *out, size_t size, struct series *s, int64_t from, int64_t to, enum chart_glyphs glyphs, double high)
{
    struct cells c = { 0 };
    struct error err;
    assert_true(cells_resize(&c, 8, 4, &err));
    chart_draw(&c, (struct rect){ 0, 0, 8, 4 },
               &(struct chart){ .series = s, .from = from, .to = to, .cursor = -1, .low = NAN, .high = high, .glyphs = glyphs });
    out[0] = 0;
    for (int y = 0; y < 4; y++) {
        char row[128];
        cells_row(&c, y, row, sizeof(row));
        snprintf(out + strlen(out), size - strlen(out), "%s%s", y ? "/" : "", row);
    }
    cells_release(&c);
    return out;
}

static const char *drawn(char *out, size_t size, struct series *s, int64_t from, int64_t to, enum chart_glyphs glyphs)
{
    return drawn_below(out, size, s, from, to, glyphs, NAN);
}

static void a_rising_line_rises_in_every_kind_of_glyph(UNUSED void **state)
{
    struct series s;
    char out[512];
    series_init(&s);
    for (int i = 0; i < 8; i++)
        assert_true(series_set(&s, i, i));    // axis 0..8
    assert_string_equal(drawn(out, sizeof(out), &s, 0, 8, GLYPHS_ASCII), "       */    ***/  **/**");
    drawn(out, sizeof(out), &s, 0, 8, GLYPHS_BRAILLE);
    assert_non_null(strstr(out, "\u2840") ? strstr(out, "\u2840") : strstr(out, "\u28c0"));
    drawn(out, sizeof(out), &s, 0, 8, GLYPHS_BLOCK);
    assert_non_null(strstr(out, "\u2588"));
    series_release(&s);
}

static void the_bound_of_an_alarm_is_a_line_where_it_is_in_range(UNUSED void **state)
{
    struct series s;
    char out[512];
    series_init(&s);
    for (int i = 0; i < 8; i++)
        assert_true(series_set(&s, i, i));    // axis 0..8, rows of 2
    const char *bound = "\u2508\u2508\u2508\u2508";
    assert_non_null(strstr(drawn_below(out, sizeof(out), &s, 0, 8, GLYPHS_ASCII, 5.5), bound));
    assert_null(strstr(drawn_below(out, sizeof(out), &s, 0, 8, GLYPHS_ASCII, 9), "\u2508"));
    series_release(&s);
}

static void on_a_logarithmic_scale_factors_are_equal_heights(UNUSED void **state)
{
    struct series s;
    struct cells c = { 0 };
    struct error err;
    char row[128];
    series_init(&s);
    for (int i = 0; i < 8; i++)
        assert_true(series_set(&s, i, i == 7 ? 0 : pow(10, i / 2)));    // 1 1 10 10 100 100 1000 and 0, which has no logarithm
    assert_true(cells_resize(&c, 8, 4, &err));
    struct chart chart = {
        .series = &s, .to = 8, .cursor = -1, .low = NAN, .high = 100, .log_scale = true, .smooth = 1, .glyphs = GLYPHS_ASCII
    };
    chart_draw(&c, (struct rect){ 0, 0, 8, 4 }, &chart);
    static const char *const want[] = { "      *", NULL, "  **", "**" };
    for (int y = 0; y < 4; y++) {
        cells_row(&c, y, row, sizeof(row));
        if (want[y])
            assert_string_equal(row, want[y]);
        else    // the alarm's bound, where the line does not cover it
            assert_string_equal(row, "\u2508\u2508\u2508\u2508**\u2508\u2508");
    }
    cells_clear(&c);
    series_cut(&s, 0);
    assert_true(series_set(&s, 0, -1));
    assert_true(cells_resize(&c, 20, 4, &err));
    chart_draw(&c, (struct rect){ 0, 0, 20, 4 }, &chart);
    cells_row(&c, 2, row, sizeof(row));
    assert_string_equal(row, "  no value above 0");
    cells_release(&c);
    series_release(&s);
}

static void lines_of_one_chart_are_told_apart_without_colour(UNUSED void **state)
{
    struct series s, t;
    struct cells c = { 0 };
    struct error err;
    char row[512];
    series_init(&s);
    series_init(&t);
    for (int i = 0; i < 40; i++) {
        assert_true(series_set(&s, i, i));
        assert_true(series_set(&t, i, 1000 - 10 * i));    // it falls, on another scale
    }
    assert_true(cells_resize(&c, 80, 8, &err));
    struct chart_line line = { .series = &t, .own_scale = true, .letter = 'b', .role = ROLE_SERIES2 };
    struct chart chart = { .series = &s, .to = 40, .cursor = -1, .low = NAN, .high = NAN, .line = &line, .n_line = 1, .smooth = 1 };
    for (int glyphs = GLYPHS_BRAILLE; glyphs <= GLYPHS_ASCII; glyphs++) {
        int n_a = 0, n_b = 0, first_b = -1, last_b = -1;
        chart.glyphs = (enum chart_glyphs)glyphs;
        cells_clear(&c);
        chart_draw(&c, (struct rect){ 0, 0, 80, 8 }, &chart);
        for (int i = 0; i < c.w * c.h; i++) {
            n_a += c.cell[i].ch == 'a' && c.cell[i].role == ROLE_SERIES1;
            if (c.cell[i].ch != 'b')
                continue;
            n_b++;
            first_b = first_b < 0 ? i : first_b;
            last_b = i;
        }
        assert_true(n_a >= 3 && n_b >= 3);
        assert_true(first_b % c.w < last_b % c.w);    // from the upper left to the lower right: it has the whole height
        cells_row(&c, 0, row, sizeof(row));
        assert_memory_equal(row, "    40", 6);    // the axis is the first one's
    }
    cells_release(&c);
    series_release(&s);
    series_release(&t);
}

static void an_axis_of_times_shows_times(UNUSED void **state)
{
    struct series s;
    struct cells c = { 0 };
    struct error err;
    char row[256];
    series_init(&s);
    for (int i = 0; i < 721; i++)
        assert_true(series_set(&s, i, i % 5));
    assert_true(cells_resize(&c, 40, 6, &err));
    struct chart chart = { .series = &s, .to = 721, .cursor = -1, .low = NAN, .high = NAN, .tick_s = 10 };
    chart_draw(&c, (struct rect){ 0, 0, 40, 6 }, &chart);
    cells_row(&c, 5, row, sizeof(row));
    assert_string_equal(row, "       0.0s                      2:00:00");
    cells_release(&c);
    series_release(&s);
}

static void a_spark_line_is_a_mean_per_cell_and_blank_where_nothing_is_known(UNUSED void **state)
{
    struct series s;
    struct cells c = { 0 };
    struct error err;
    char row[64];
    series_init(&s);
    for (int i = 0; i < 8; i++)
        assert_true(series_set(&s, i, i == 4 || i == 5 ? NAN : i));
    assert_true(cells_resize(&c, 4, 1, &err));
    spark_draw(&c, (struct rect){ 0, 0, 4, 1 }, &s, 0, 8, GLYPHS_ASCII);    // means 0.5, 2.5, none, 6.5 of 0..7
    cells_row(&c, 0, row, sizeof(row));
    assert_string_equal(row, "13 8");
    spark_draw(&c, (struct rect){ 0, 0, 4, 1 }, &s, 0, 8, GLYPHS_BRAILLE);
    cells_row(&c, 0, row, sizeof(row));
    assert_string_equal(row, "\u2582\u2584 \u2588");
    cells_release(&c);
    series_release(&s);
}

static void no_data_stays_blank_and_is_not_zero(UNUSED void **state)
{
    struct series s;
    char out[512];
    series_init(&s);
    for (int i = 0; i < 8; i++)
        assert_true(series_set(&s, i, i == 2 || i == 3 || i == 5 ? NAN : 1 + (i & 1)));
    assert_string_equal(drawn(out, sizeof(out), &s, 0, 8, GLYPHS_ASCII), " *     */ *     */ *     */*   * *");
    series_release(&s);
    series_init(&s);
    assert_non_null(strstr(drawn(out, sizeof(out), &s, 0, 8, GLYPHS_BRAILLE), "no data"));
    assert_non_null(strstr(drawn(out, sizeof(out), NULL, 0, 8, GLYPHS_BRAILLE), "no data"));
    series_release(&s);
}

static void a_single_spike_among_ten_thousand_steps_is_seen(UNUSED void **state)
{
    struct series s;
    char out[512];
    series_init(&s);
    for (int i = 0; i < 10000; i++)
        assert_true(series_set(&s, i, i == 4321 ? 100 : 1));
    drawn(out, sizeof(out), &s, 0, 10000, GLYPHS_ASCII);
    assert_int_equal(out[3], '.');    // its column, top row
    series_release(&s);
}

static void charts_of_any_size_stay_inside(UNUSED void **state)
{
    struct series s;
    struct cells c = { 0 };
    struct error err;
    series_init(&s);
    for (int i = 0; i < 300; i++)
        assert_true(series_set(&s, i, sin(i * 0.1)));
    int64_t marks[] = { 0, 150, 299, 5000 };
    for (int w = 0; w < 40; w++)
        for (int h = 0; h < 12; h++)
            for (int g = 0; g < 3; g++) {
                assert_true(cells_resize(&c, 44, 16, &err));
                chart_draw(&c, (struct rect){ 2, 2, w, h },
                           &(struct chart){ .series = &s,
                                            .from = w,
                                            .to = w + h * 40,
                                            .mark = marks,
                                            .n_mark = 4,
                                            .cursor = 60,
                                            .low = 0,
                                            .high = 1e9,
                                            .glyphs = (enum chart_glyphs)g });
                for (int y = 0; y < 16; y++)
                    for (int x = 0; x < 44; x++)
                        if (x < 2 || y < 2 || x >= 2 + w || y >= 2 + h)
                            assert_int_equal(c.cell[y * 44 + x].ch, ' ');
            }
    cells_release(&c);
    series_release(&s);
}

static void axes_are_round_and_hold_the_values(UNUSED void **state)
{
    static const double cases[][4] = { { 0, 7, 0, 8 }, { 0.21, 0.93, 0.2, 1 }, { -3, 3, -4, 4 }, { 5, 5, 2.5, 7.5 }, { 0, 0, 0, 1 } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double lo, hi;
        chart_range(cases[i][0], cases[i][1], &lo, &hi);
        assert_float_equal(lo, cases[i][2], 1e-9);
        assert_float_equal(hi, cases[i][3], 1e-9);
    }
}

static void numbers_fit_six_columns(UNUSED void **state)
{
    static const struct {
        double v;
        const char *want;
    } cases[] = {
        { 0, "0" },           { 0.7341, "0.734" }, { 1.5, "1.50" },       { 12345, "12.3k" },
        { 999.4, "999" },     { 999.6, "1.0k" },   { 1.23e-5, "1.2e-5" }, { -0.5, "-0.500" },
        { -1.2e-5, "-1e-5" }, { 5.1e9, "5.1G" },   { 1e300, "1e+300" },
    };
    char out[16];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_string_equal(value_format(out, cases[i].v), cases[i].want);
    assert_string_equal(value_format(out, NAN), "-");
    for (double v = 1e-12; v < 1e15; v *= 1.37) {
        assert_true(strlen(value_format(out, v)) <= 6);
        assert_true(strlen(value_format(out, -v)) <= 7);
    }
    assert_string_equal(duration_format(out, 65), "1:05");
    assert_string_equal(duration_format(out, NAN), "-");
    assert_string_equal(bytes_format(out, 3.4 * 1048576), "3.4 MiB");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_equals_looking_at_every_value),
        cmocka_unit_test(what_cannot_be_kept_changes_nothing),
        cmocka_unit_test(a_rising_line_rises_in_every_kind_of_glyph),
        cmocka_unit_test(on_a_logarithmic_scale_factors_are_equal_heights),
        cmocka_unit_test(lines_of_one_chart_are_told_apart_without_colour),
        cmocka_unit_test(an_axis_of_times_shows_times),
        cmocka_unit_test(a_spark_line_is_a_mean_per_cell_and_blank_where_nothing_is_known),
        cmocka_unit_test(no_data_stays_blank_and_is_not_zero),
        cmocka_unit_test(a_single_spike_among_ten_thousand_steps_is_seen),
        cmocka_unit_test(the_bound_of_an_alarm_is_a_line_where_it_is_in_range),
        cmocka_unit_test(charts_of_any_size_stay_inside),
        cmocka_unit_test(axes_are_round_and_hold_the_values),
        cmocka_unit_test(numbers_fit_six_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
