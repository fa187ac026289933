#include "workers/serve/reply_parts.h"

bool reply_answer(struct answer_parts *a, const struct serve_job *j, const struct job_choice *c)
{
    const struct answer_config config = { .opens_thinking = j->ask.opens_thinking,
                                          .finds_calls = j->ask.parse_tools,
                                          .parallel_calls = j->ask.parallel_tools,
                                          .tools = j->ask.tools };
    return answer_read(a, &config, buf_text(&c->text.text), c->text.text.len, c->text.safe, c->end != CHOICE_OPEN);
}

struct job_choice choice_unsent(const struct job_choice *c)
{
    struct job_choice unsent = *c;
    unsent.block = BLOCK_NONE;
    unsent.n_block = 0;
    unsent.n_event = 0;
    unsent.sent_text = unsent.sent_thinking = 0;
    unsent.began = unsent.ended = false;
    return unsent;
}

static void block_close(struct block_print *p, const struct block_shape *shape)
{
    struct job_choice *c = p->c;
    bool thinking = c->block == BLOCK_THINKING;
    if (c->block == BLOCK_NONE)
        return;
    shape->close(p, c->block, thinking ? p->answer->thinking : p->answer->content, thinking ? p->answer->n_thinking : p->answer->n_content);
    c->block = BLOCK_NONE;
    c->n_block++;
}

/* The block's text beyond the *sent bytes. */
static void block_go_on(struct block_print *p, const struct block_shape *shape, enum block_kind kind, const char *s, size_t n, size_t *sent)
{
    if (p->c->block != kind) {
        block_close(p, shape);
        p->c->block = kind;
        shape->open(p, kind);
    }
    if (n > *sent)
        shape->more(p, kind, s + *sent, n - *sent);
    *sent = MAX(*sent, n);
}

bool blocks_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, struct job_choice *c,
                  const struct block_shape *shape)
{
    struct answer_parts a;
    bool ends = c->end != CHOICE_OPEN;
    if (c->ended || (c->n_tok == 0 && !ends))
        return true;
    if (!reply_answer(&a, j, c))
        return false;
    struct block_print p = { .out = out, .x = x, .j = j, .c = c, .answer = &a };
    if (!c->began)
        shape->begin(&p);
    c->began = true;
    if (a.n_thinking > c->sent_thinking)
        block_go_on(&p, shape, BLOCK_THINKING, a.thinking, a.n_thinking, &c->sent_thinking);
    if (a.n_content > c->sent_text || (ends && a.n_thinking + a.n_content == 0 && a.calls.n == 0 && c->n_block == 0))
        block_go_on(&p, shape, BLOCK_TEXT, a.content, a.n_content, &c->sent_text);
    if (ends) {
        block_close(&p, shape);
        for (int i = 0; i < a.calls.n; i++, c->n_block++)
            shape->call(&p, i);
        shape->end(&p);
        c->ended = true;
    }
    answer_release(&a);
    return true;
}
