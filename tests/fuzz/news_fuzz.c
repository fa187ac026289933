/* What a console takes from a run: each answer and publication, in any order, into a model that is then drawn.
 *
 * An input is a byte that says what it is taken for, a byte for the pane, and a message. corpus/news has one message of each kind:
 * without them the first 2 million inputs hold none that is an answer at all. A new protocol version needs new ones. */
#include <stddef.h>
#include <stdint.h>
#include "console/fleet/news.h"
#include "console/tui/app.h"
#include "protocol/wire/message.h"

#define COLS 100
#define ROWS 30
#define NOW_NS ((int64_t)1000000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void draw(struct run_view *m, uint8_t pane)
{
    struct error err;
    struct app a;
    struct cells c = { 0 };
    if (app_init(&a, m, NULL, COLS, ROWS, &err)) {
        app_show(&a, (enum pane_id)(pane % N_PANE));
        app_news(&a, NOW_NS);
        if (cells_resize(&c, COLS, ROWS, &err))
            app_draw(&a, &c, NOW_NS, 1.7e9);
        cells_release(&c);
        app_release(&a);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    struct msg_in in;
    if (size < 2 || !msg_read_answer(&in, MSG_OK, data + 2, size - 2, &err))
        return 0;
    struct run_view *m = view_new(&err);
    for (int i = 0; m && i < 8; i++)    // the first byte says what it is taken for
        switch (data[0] >> i & 1 ? i : -1) {
        case 0: news_status(m, in.root, NOW_NS); break;
        case 1: (void)news_steps(m, in.root); break;
        case 2: (void)news_step(m, in.root); break;
        case 3: news_events(m, in.root); break;
        case 4: news_rollout(m, in.root); break;
        case 5: news_rollouts(m, in.root); break;
        case 6: news_checkpoints(m, in.root); break;
        case 7: news_process(m, in.root, data[1] & 1, NOW_NS); break;
        default: break;
        }
    if (m)
        draw(m, data[1]);
    fleet_model_free(m);
    msg_in_release(&in);
    return 0;
}
