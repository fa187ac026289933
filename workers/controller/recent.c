#include "workers/controller/recent.h"
#include "protocol/base/clock.h"
#include "workers/controller/controller.h"

#define GROUP_MAX ((size_t)1 << 20)    // bytes of a group that is kept
#define TOLD_MS 200                    // between groups sent to the listeners: for the screen a few are enough

void recent_release(struct recent *r)
{
    for (int i = 0; i < RECENT_MAX; i++)
        buf_release(&r->group[i]);
}

static const struct buf *recent_at(const struct recent *r, int64_t k)
{
    return &r->group[k % RECENT_MAX];
}

static void group_write(const struct controller *c, const struct mval *group, struct msg_out *m)
{
    msg_copy(m, "item", mval_get(group, "item"));
    msg_copy(m, "step", mval_get(group, "version"));
    line_write(c, m, mval_get(group, "row"));
    msg_copy(m, "prompt_text", mval_get(group, "prompt_text"));
    msg_copy(m, "gold", mval_get(group, "gold"));
    msg_copy(m, "samples", mval_get(group, "samples"));
}

static void newest_body(struct controller *c, struct msg_out *m)
{
    const struct buf *b = recent_at(&c->recent, c->recent.n - 1);
    struct msg_in in;
    struct error err;
    if (!msg_read_request(&in, b->data, b->len, &err))
        return;
    group_write(c, in.root, m);
    msg_in_release(&in);
}

void recent_add(struct controller *c, const void *data, size_t len)
{
    struct recent *r = &c->recent;
    struct buf *b = &r->group[r->n % RECENT_MAX];
    if (len > GROUP_MAX)
        return;
    buf_clear(b);
    if (!buf_add(b, data, len))
        return;
    r->n++;
    if (clock_ms() - r->told_ms >= TOLD_MS) {
        r->told_ms = clock_ms();
        publish(c, "rollout", newest_body);
    }
}

void rollouts_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t n = MIN(mval_i64(mval_get(in->root, "limit"), RECENT_MAX), (int64_t)RECENT_MAX);
    msg_begin(&m, MSG_OK);
    msg_list(&m, "groups");
    for (int64_t k = c->recent.n - 1; k >= 0 && k >= c->recent.n - n; k--) {
        const struct buf *b = recent_at(&c->recent, k);
        struct msg_in g;
        if (!msg_read_request(&g, b->data, b->len, &err))
            continue;
        msg_map(&m, NULL);
        group_write(c, g.root, &m);
        msg_end(&m);
        msg_in_release(&g);
    }
    msg_end(&m);
    answer_later(c, r, &m);
}
