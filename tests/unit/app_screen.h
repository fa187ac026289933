/* app_screen.h - what an app shows, as text */
#pragma once
#include <string.h>
#include "console/tui/app.h"

/* The whole screen at now, rows ended by newlines; static, overwritten by the next call. */
static const char *app_screen(struct app *app, struct cells *c, int64_t now)
{
    static char text[200000];
    struct error err;
    size_t at = 0;
    assert_true(cells_resize(c, app->w, app->h, &err));
    app_draw(app, c, now, 1700000000);
    for (int y = 0; y < c->h; y++) {
        cells_row(c, y, text + at, sizeof text - at - 2);
        at += strlen(text + at);
        text[at++] = '\n';
    }
    text[at] = 0;
    return text;
}

static void app_must_show(struct app *app, struct cells *c, int64_t now, const char *what)
{
    if (!strstr(app_screen(app, c, now), what))
        fail_msg("'%s' is not on the screen:\n%s", what, app_screen(app, c, now));
}
