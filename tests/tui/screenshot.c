/* screenshot.c - a real picture of a program's screen, as SVG
 *
 *   tui_screenshot OUT.svg COLSxROWS THEME STEP... -- COMMAND...
 * A step is  wait:TEXT  (until the screen shows it, at most 300 s),  gone:TEXT  (until it does not),
 * keys:KEYS  (\r, \t, \e understood)  or  sleep:SECONDS.
 * The command runs in a pseudo-terminal; what libvterm understood of its output is drawn, cell by cell, with the colours it
 * sent. THEME (dark or light) is only the picture's ground, as a terminal has one. Exit 1 when a text does not come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vterm.h>
#include "tests/tui/pty.h"
#include "console/tui/text.h"

#define CELL_W 8.4
#define CELL_H 17
#define PAD 14

static void escape_out(FILE *f, const char *utf8)
{
    for (; *utf8; utf8++)
        if (*utf8 == '<')
            fputs("&lt;", f);
        else if (*utf8 == '>')
            fputs("&gt;", f);
        else if (*utf8 == '&')
            fputs("&amp;", f);
        else
            fputc(*utf8, f);
}

static unsigned rgb_of(struct pty *p, VTermColor c, unsigned otherwise)
{
    if (VTERM_COLOR_IS_DEFAULT_FG(&c) || VTERM_COLOR_IS_DEFAULT_BG(&c))
        return otherwise;
    if (VTERM_COLOR_IS_INDEXED(&c) && c.indexed.idx >= 16 && c.indexed.idx < 232) {    // xterm's cube; libvterm's is another
        static const unsigned level[6] = { 0, 95, 135, 175, 215, 255 };
        unsigned i = c.indexed.idx - 16u;
        return level[i / 36] << 16 | level[i / 6 % 6] << 8 | level[i % 6];
    }
    vterm_screen_convert_color_to_rgb(p->screen, &c);
    return (unsigned)c.rgb.red << 16 | (unsigned)c.rgb.green << 8 | c.rgb.blue;
}

/* Braille and block characters as shapes: fonts differ too much on them. True when drawn. */
static bool shape_out(FILE *f, uint32_t ch, double x, double y, unsigned fg)
{
    static const int dot_x[8] = { 0, 0, 0, 1, 1, 1, 0, 1 }, dot_y[8] = { 0, 1, 2, 0, 1, 2, 3, 3 };
    if (ch >= 0x2800 && ch <= 0x28ff) {
        fprintf(f, "<path class=\"d\" stroke=\"#%06x\" d=\"", fg);
        for (int i = 0; i < 8; i++)
            if ((ch - 0x2800) >> i & 1)    // a dot is a line of no length with round ends
                fprintf(f, "M%.1f %.1fh0", x + CELL_W * (0.25 + 0.5 * dot_x[i]), y + CELL_H * (0.125 + 0.25 * dot_y[i]));
        fputs("\"/>", f);
        return true;
    }
    if (ch >= 0x2581 && ch <= 0x2588) {
        double h = CELL_H * (double)(ch - 0x2580) / 8;
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#%06x\"/>", x, y + CELL_H - h, CELL_W + 0.1, h, fg);
        return true;
    }
    if (ch >= 0x2589 && ch <= 0x258f) {
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"#%06x\"/>", x, y, CELL_W * (double)(0x2590 - ch) / 8,
                CELL_H, fg);
        return true;
    }
    double cx = x + CELL_W / 2, cy = y + CELL_H / 2.0, r = x + CELL_W, b = y + CELL_H;
    char path[200] = "";
    switch (ch) {
    case 0x2500: snprintf(path, sizeof(path), "M%.1f %.1fH%.1f", x, cy, r); break;
    case 0x2502: snprintf(path, sizeof(path), "M%.1f %.1fV%.1f", cx, y, b); break;
    case 0x256d: snprintf(path, sizeof(path), "M%.1f %.1fV%.1fQ%.1f %.1f %.1f %.1fH%.1f", cx, b, cy + 4, cx, cy, cx + 4, cy, r); break;
    case 0x256e: snprintf(path, sizeof(path), "M%.1f %.1fV%.1fQ%.1f %.1f %.1f %.1fH%.1f", cx, b, cy + 4, cx, cy, cx - 4, cy, x); break;
    case 0x2570: snprintf(path, sizeof(path), "M%.1f %.1fV%.1fQ%.1f %.1f %.1f %.1fH%.1f", cx, y, cy - 4, cx, cy, cx + 4, cy, r); break;
    case 0x256f: snprintf(path, sizeof(path), "M%.1f %.1fV%.1fQ%.1f %.1f %.1f %.1fH%.1f", cx, y, cy - 4, cx, cy, cx - 4, cy, x); break;
    default: return false;
    }
    fprintf(f, "<path class=\"l\" stroke=\"#%06x\" d=\"%s\"/>", fg, path);
    return true;
}

static bool svg_write(struct pty *p, const char *path, bool light)
{
    FILE *f = fopen(path, "w");
    unsigned ground = light ? 0xffffff : 0x14171c, ink = light ? 0x1f2328 : 0xd7dae0;
    double w = p->cols * CELL_W + 2 * PAD, h = p->rows * CELL_H + 2 * PAD;
    if (!f)
        return false;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',Consolas,monospace\" font-size=\"14\">\n"
            "<style>.d{stroke-width:3;stroke-linecap:round}.l{fill:none}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"#%06x\"/>\n",
            w, h, w, h, ground);
    for (int y = 0; y < p->rows; y++) {
        for (int x = 0; x < p->cols; x++) {
            VTermScreenCell cell;
            vterm_screen_get_cell(p->screen, (VTermPos){ .row = y, .col = x }, &cell);
            if (cell.chars[0] == (uint32_t)-1)
                continue;
            unsigned fg = rgb_of(p, cell.fg, ink), bg = rgb_of(p, cell.bg, ground);
            if (cell.attrs.reverse) {
                unsigned t = fg;
                fg = bg;
                bg = t;
            }
            double px = PAD + x * CELL_W, py = PAD + y * CELL_H;
            if (bg != ground)
                fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"#%06x\"/>", px, py, CELL_W * cell.width + 0.3,
                        CELL_H, bg);
            if (cell.chars[0] == 0 || cell.chars[0] == ' ' || shape_out(f, cell.chars[0], px, py, fg))
                continue;
            char text[64];
            size_t n = 0;
            for (int i = 0; i < VTERM_MAX_CHARS_PER_CELL && cell.chars[i]; i++)
                n += text_encode(cell.chars[i], text + n);
            text[n] = 0;
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#%06x\"%s>", px, py + CELL_H * 0.75, fg,
                    cell.attrs.bold ? " font-weight=\"bold\"" : "");
            escape_out(f, text);
            fputs("</text>", f);
        }
        fputc('\n', f);
    }
    fputs("</svg>\n", f);
    return fclose(f) == 0;
}

static void keys_type(struct pty *p, const char *keys)
{
    for (; *keys; keys++) {
        char c = *keys;
        if (c == '\\' && keys[1]) {
            keys++;
            c = *keys == 'r' ? '\r' : *keys == 't' ? '\t' : *keys == 'e' ? '\x1b' : *keys;
        }
        pty_send(p, &c, 1);
        pty_read(p, 150, 50);
    }
}

int main(int argc, char **argv)
{
    int cols = 0, rows = 0, command = 4;
    while (command < argc && strcmp(argv[command], "--") != 0)
        command++;
    if (argc < 6 || command + 1 >= argc || sscanf(argv[2], "%dx%d", &cols, &rows) != 2 || cols < 1 || rows < 1) {
        fprintf(stderr,
                "usage: tui_screenshot OUT.svg COLSxROWS dark|light [wait:TEXT|gone:TEXT|keys:KEYS|sleep:SECONDS]... -- COMMAND...\n");
        return 2;
    }
    struct pty p;
    if (!pty_start(&p, cols, rows, NULL, argv + command + 1)) {
        fprintf(stderr, "screenshot: cannot start '%s'\n", argv[command + 1]);
        return 1;
    }
    bool ok = true;
    for (int i = 4; i < command && ok; i++) {
        if (strncmp(argv[i], "wait:", 5) == 0 && !pty_wait(&p, argv[i] + 5, 300)) {
            fprintf(stderr, "screenshot: '%s' does not come on the screen:\n", argv[i] + 5);
            pty_print(&p);
            ok = false;
        } else if (strncmp(argv[i], "gone:", 5) == 0 && !pty_wait_gone(&p, argv[i] + 5, 300)) {
            fprintf(stderr, "screenshot: '%s' stays on the screen:\n", argv[i] + 5);
            pty_print(&p);
            ok = false;
        } else if (strncmp(argv[i], "keys:", 5) == 0) {
            keys_type(&p, argv[i] + 5);
        } else if (strncmp(argv[i], "sleep:", 6) == 0) {
            pty_read(&p, (int)(1000 * atof(argv[i] + 6)), 0);
        }
    }
    pty_read(&p, 400, 100);
    if (ok && !svg_write(&p, argv[1], strcmp(argv[3], "light") == 0)) {
        perror(argv[1]);
        ok = false;
    }
    pty_finish(&p, 10, true);
    return ok ? 0 : 1;
}
