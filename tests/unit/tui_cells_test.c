/* tui_cells_test.c - text from anywhere becomes cells; themes become looks */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "console/tui/cells.h"
#include "console/tui/text.h"
#include "console/tui/theme.h"

static struct cells cells_make(int w, int h)
{
    struct cells c = { 0 };
    struct error err;
    assert_true(cells_resize(&c, w, h, &err));
    return c;
}

static void text_is_cut_and_sanitised(UNUSED void **state)
{
    static const struct {
        const char *text;
        int w;
        const char *want;
        int columns;
        const char *why;
    } cases[] = {
        { "plain", 10, "plain", 5, "fits" },
        { "plain", 5, "plain", 5, "fits exactly" },
        { "plainer", 5, "plai\u2026", 5, "cut with an ellipsis" },
        { "a\x1b[31mb", 10, "a\u241b[31mb", 7, "an escape sequence is shown, not obeyed" },
        { "a\xff\xfe"
          "b",
          10,
          "a\ufffd\ufffd"
          "b",
          4, "broken UTF-8" },
        { "a\u202e"
          "b",
          10,
          "a\ufffd"
          "b",
          3, "a direction override is shown" },
        { "\u4e2d\u6587", 10, "\u4e2d\u6587", 4, "wide characters take two columns" },
        { "\u4e2d\u6587\u5b57", 5, "\u4e2d\u6587\u2026", 5, "cut between wide characters" },
        { "\u4e2d\u6587\u5b57", 3, "\u4e2d\u2026", 3, "cut where half a wide one would stand" },
        { "e\u0301x", 10, "e\u0301x", 2, "a combining mark stays on its letter" },
        { "\u0301x", 10, "x", 1, "a mark with nothing before it is not drawn" },
        { "a\u200db", 10, "ab", 2, "the joiner is left out" },
        { "a\nb", 10,
          "a\u21b5"
          "b",
          3, "a newline inside one row" },
        { "abc", 0, "", 0, "no room at all" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct cells c = cells_make(12, 1);
        char row[128];
        assert_int_equal(cells_text(&c, 0, 0, cases[i].w, cases[i].text, ROLE_TEXT), cases[i].columns);
        cells_row(&c, 0, row, sizeof(row));
        assert_string_equal(row, cases[i].want);
        cells_release(&c);
    }
}

static void half_a_wide_character_never_remains(UNUSED void **state)
{
    struct cells c = cells_make(4, 1);
    char row[64];
    cells_put(&c, 1, 0, 0x4e2d, ROLE_TEXT);
    cells_put(&c, 2, 0, 'x', ROLE_TEXT);    // over its right half
    cells_row(&c, 0, row, sizeof(row));
    assert_string_equal(row, "  x");
    cells_put(&c, 1, 0, 0x4e2d, ROLE_TEXT);
    cells_put(&c, 1, 0, 'y', ROLE_TEXT);    // over its left half
    cells_row(&c, 0, row, sizeof(row));
    assert_string_equal(row, " y");
    cells_put(&c, 3, 0, 0x4e2d, ROLE_TEXT);    // its right half would be outside
    assert_int_equal(c.cell[3].ch, ' ');
    for (int a = -2; a < 6; a++)
        for (int b = -2; b < 6; b++) {    // any two wide ones: each left half has its right half
            cells_clear(&c);
            cells_put(&c, a, 0, 0x4e2d, ROLE_TEXT);
            cells_put(&c, b, 0, 0x6587, ROLE_TEXT);
            for (int x = 0; x < 4; x++) {
                bool wide = c.cell[x].ch >= 0x4e00;
                assert_true(!wide || (x + 1 < 4 && c.cell[x + 1].ch == 0));
                assert_true(c.cell[x].ch != 0 || (x > 0 && c.cell[x - 1].ch >= 0x4e00));
            }
        }
    cells_release(&c);
}

static void writing_outside_changes_nothing(UNUSED void **state)
{
    struct cells c = cells_make(3, 2);
    cells_put(&c, -1, 0, 'x', ROLE_TEXT);
    cells_put(&c, 3, 0, 'x', ROLE_TEXT);
    cells_put(&c, 0, 2, 'x', ROLE_TEXT);
    cells_text(&c, -5, 5, 100, "outside", ROLE_TEXT);
    cells_fill(&c, (struct rect){ -9, -9, 4, 4 }, 'x', ROLE_TEXT);
    cells_select(&c, (struct rect){ 3, 0, 9, 9 });
    cells_box(&c, (struct rect){ 2, 1, 50, 50 }, "title", ROLE_BORDER, ROLE_TITLE);
    for (int i = 0; i < 5; i++)
        assert_int_equal(c.cell[i].ch, ' ');
    cells_release(&c);
}

static void ascii_leaves_only_ascii(UNUSED void **state)
{
    struct cells c = cells_make(40, 3);
    cells_box(&c, (struct rect){ 0, 0, 40, 3 }, "t\u4e2d\u00e9", ROLE_BORDER, ROLE_TITLE);
    cells_text(&c, 1, 1, 30, "\u25cf \u2588\u28ff\u2800 e\u0301 \u2026", ROLE_TEXT);
    cells_ascii(&c);
    char row[256];
    cells_row(&c, 1, row, sizeof(row));
    assert_string_equal(row, "|* #:  e ~                             |");
    for (int i = 0; i < 120; i++)
        assert_true(c.cell[i].ch >= 0x20 && c.cell[i].ch < 0x7f && c.cell[i].mark == 0);
    cells_release(&c);
}

static void wrapping_keeps_every_byte_and_fits(UNUSED void **state)
{
    static const struct {
        const char *text;
        int w;
        const char *lines[5];
        const char *why;
    } cases[] = {
        { "one two three", 7, { "one two", "three" }, "at the last blank that fits" },
        { "one two  three", 8, { "one two ", "three" }, "a second blank falls off the end" },
        { "abcdefgh", 3, { "abc", "def", "gh" }, "anywhere when there is no blank" },
        { "a\n\nb", 5, { "a", "", "b" }, "empty lines stay" },
        { "a\r\nb", 5, { "a", "b" }, "both kinds of line end" },
        { "\u4e2d\u6587", 1, { "\u4e2d", "\u6587" }, "narrower than one character still goes on" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *s = cases[i].text;
        size_t left = strlen(s), next;
        for (int k = 0; left > 0; k++, s += next, left -= next) {
            size_t n = text_wrap(s, left, cases[i].w, &next);
            assert_true(next > 0 && k < 5 && cases[i].lines[k]);
            assert_int_equal(n, strlen(cases[i].lines[k]));
            assert_memory_equal(s, cases[i].lines[k], n);
        }
    }
    srand(7);
    for (int round = 0; round < 2000; round++) {    // any bytes, any width: it ends, advances and fits
        char bytes[64];
        size_t len = (size_t)(rand() % 64);
        for (size_t i = 0; i < len; i++)
            bytes[i] = (char)(rand() % 4 ? "ab \n\r\xe4\xb8\xad\xf0"[rand() % 9] : rand());
        int w = 1 + rand() % 9;
        for (size_t at = 0, next; at < len; at += next) {
            size_t n = text_wrap(bytes + at, len - at, w, &next);
            assert_true(next > 0 && n <= next && at + next <= len);
            assert_true(text_columns(bytes + at, n) <= MAX(w, 2));
        }
    }
}

static const struct {
    const char *name;
    bool light;
    double contrast;    // of texts against the ground, at least (WCAG 2.2, 1.4.3 and 1.4.6); 0: not promised
} shipped[] = {
    { "dark", false, 4.5 },
    { "light", true, 4.5 },
    { "high-contrast", false, 7 },
    { "colorblind-dark", false, 4.5 },
    { "colorblind-light", true, 4.5 },
    { "mono", false, 0 },
};

static void every_shipped_theme_names_every_role(UNUSED void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(shipped); i++) {
        struct theme t;
        struct error err = { 0 };
        assert_true(theme_load(&t, shipped[i].name, &err));
        assert_string_equal(t.name, shipped[i].name);
        assert_int_equal(t.light, shipped[i].light);
        for (int r = 0; r < N_ROLE; r++)
            if (!t.style[r].set)
                fail_msg("%s lacks %s", t.name, role_table[r].name);
    }
}

/* A channel of sRGB as linear light, 0 to 1 (IEC 61966-2-1). */
static double linear(int32_t rgb, int shift)
{
    double c = (double)(rgb >> shift & 0xff) / 255;
    return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
}

/* WCAG 2.2, relative luminance and contrast ratio. */
static double contrast(int32_t a, int32_t b)
{
    double la = 0.2126 * linear(a, 16) + 0.7152 * linear(a, 8) + 0.0722 * linear(a, 0);
    double lb = 0.2126 * linear(b, 16) + 0.7152 * linear(b, 8) + 0.0722 * linear(b, 0);
    return (fmax(la, lb) + 0.05) / (fmin(la, lb) + 0.05);
}

static void texts_stand_out_from_their_ground(UNUSED void **state)
{
    static const enum role texts[] = { ROLE_TEXT, ROLE_DIM,  ROLE_TITLE, ROLE_BAR,    ROLE_KEY,    ROLE_INPUT,   ROLE_MATCH, ROLE_OK,
                                       ROLE_WARN, ROLE_CRIT, ROLE_STALE, ROLE_PAUSED, ROLE_DANGER, ROLE_CHANGED, ROLE_SELECT };
    for (size_t i = 0; i < ARRAY_SIZE(shipped); i++)
        for (size_t k = 0; k < ARRAY_SIZE(texts); k++) {
            struct theme t;
            struct error err = { 0 };
            assert_true(theme_load(&t, shipped[i].name, &err));
            int32_t ground = t.light ? 0xffffff : 0x14161a;    // a terminal's usual dark one, where the theme leaves it to the terminal
            const struct style *s = &t.style[texts[k]];
            if (s->fg == COLOR_DEFAULT)
                continue;
            double have = contrast(s->fg, s->bg == COLOR_DEFAULT ? ground : s->bg);
            if (have < shipped[i].contrast)
                fail_msg("%s: %s has a contrast of %.2f, less than %.1f", t.name, role_table[texts[k]].name, have, shipped[i].contrast);
        }
}

/* What an eye without the long or middle cones sees: Vienot, Brettel, Mollon, "Digital video colourmaps for checking the
 * legibility of displays by dichromats", Color Research and Application 24, 1999, in linear RGB. */
static void dichromat(int32_t rgb, bool no_long, double out[3])
{
    double r = linear(rgb, 16), g = linear(rgb, 8), b = linear(rgb, 0);
    out[0] = no_long ? 0.11238 * r + 0.88762 * g : 0.29275 * r + 0.70725 * g;
    out[1] = out[0];
    out[2] = no_long ? 0.00401 * r - 0.00401 * g + b : -0.02234 * r + 0.02234 * g + b;
}

static void good_and_bad_differ_for_red_green_blind_eyes(UNUSED void **state)
{
    static const char *const names[] = { "colorblind-dark", "colorblind-light" };
    static const enum role pairs[][2] = { { ROLE_OK, ROLE_CRIT }, { ROLE_OK, ROLE_WARN }, { ROLE_CHART, ROLE_MARK } };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        for (size_t k = 0; k < ARRAY_SIZE(pairs); k++)
            for (int no_long = 0; no_long < 2; no_long++) {
                struct theme t;
                struct error err = { 0 };
                double a[3], b[3], d = 0;
                assert_true(theme_load(&t, names[i], &err));
                dichromat(t.style[pairs[k][0]].fg, no_long, a);
                dichromat(t.style[pairs[k][1]].fg, no_long, b);
                for (int c = 0; c < 3; c++)    // as brightness is felt, about the square root of light
                    d = fmax(d, fabs(sqrt(fmax(a[c], 0)) - sqrt(fmax(b[c], 0))));
                if (d < 0.25)
                    fail_msg("%s: %s and %s look alike (%.2f)", names[i], role_table[pairs[k][0]].name, role_table[pairs[k][1]].name, d);
            }
}

static void a_wrong_theme_names_file_and_line(UNUSED void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "# fine\nok = #00ff00\nokay = #00ff00\n", "x.theme:3: there is no role 'okay'" },
        { "ok = #00ff0\n", "x.theme:1: '#00ff0' is neither a colour" },
        { "ok = green\n", "x.theme:1: 'green' is neither a colour" },
        { "ok\n", "x.theme:1: 'ok' is not of the form" },
        { "ok =\n", "x.theme:1: there is nothing after '='" },
        { "ok = #00ff00 on\n", "x.theme:1: 'on' needs a colour" },
        { "kind = dim\n", "x.theme:1: kind must be light or dark" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct theme t;
        struct error err = { 0 };
        assert_false(theme_parse(&t, cases[i].text, "x.theme", &err));
        assert_non_null(strstr(err.text, cases[i].want));
    }
    struct theme t;
    struct error err = { 0 };
    assert_false(theme_load(&t, "../../etc/passwd", &err));
    assert_false(theme_load(&t, "nosuchtheme", &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void poorer_terminals_get_what_they_can_show(UNUSED void **state)
{
    struct theme t;
    struct error err = { 0 };
    assert_true(theme_parse(&t, "ok = #00ff00\nselect = #ffffff on #0000ff\n", "x.theme", &err));
    assert_int_equal(theme_look(&t, ROLE_OK, false, DEPTH_TRUE).fg, 0x00ff00);
    assert_int_equal(theme_look(&t, ROLE_OK, false, DEPTH_256).fg, 46);    // (0,5,0) of the cube
    assert_int_equal(theme_look(&t, ROLE_OK, true, DEPTH_256).bg, 21);     // (0,0,5)
    assert_int_equal(theme_look(&t, ROLE_OK, false, DEPTH_8).fg, 2);
    for (int r = 0; r < N_ROLE; r++) {
        struct look look = theme_look(&t, (enum role)r, false, DEPTH_NONE);
        assert_true(look.fg == COLOR_DEFAULT && look.bg == COLOR_DEFAULT);
        look = theme_look(&t, (enum role)r, true, DEPTH_8);
        assert_true(look.fg < 8 && look.bg < 8);
        assert_true((look.attr & ATTR_REVERSE) || r == ROLE_SELECT);    // a selected row can be told with 8 colours
    }
    assert_int_equal(color_256(0x808080), 244);    // the grey ramp is nearer than the cube
}

int main(void)
{
    // clang-format off
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_cut_and_sanitised),
        cmocka_unit_test(half_a_wide_character_never_remains),
        cmocka_unit_test(writing_outside_changes_nothing),
        cmocka_unit_test(ascii_leaves_only_ascii),
        cmocka_unit_test(wrapping_keeps_every_byte_and_fits),
        cmocka_unit_test(every_shipped_theme_names_every_role),
        cmocka_unit_test(texts_stand_out_from_their_ground),
        cmocka_unit_test(good_and_bad_differ_for_red_green_blind_eyes),
        cmocka_unit_test(a_wrong_theme_names_file_and_line),
        cmocka_unit_test(poorer_terminals_get_what_they_can_show),
    };
    // clang-format on
    return cmocka_run_group_tests(tests, NULL, NULL);
}
