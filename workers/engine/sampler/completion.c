#include "workers/engine/sampler/completion.h"
#include "workers/engine/reward/answer.h"
#include "workers/engine/text/tokenizer.h"

static void tags_show(struct tokenizer *t, const struct answer_tags *tags)
{
    for (int i = 0; i < ANSWER_TAGS; i++)
        tokenizer_show(t, tags->text[i]);
}

bool completion_tags_show(struct tokenizer *t, const char *response_format_tags, struct error *err)
{
    struct answer_tags own;
    tags_show(t, &answer_tags_default);    // verifiers and programs look for these whatever the run's tags are
    if (!response_format_tags || !*response_format_tags)
        return true;
    if (!answer_tags_read(&own, response_format_tags, err))
        return false;
    tags_show(t, &own);
    return true;
}

bool completion_text(const struct tokenizer *t, const int32_t *id, int64_t n, struct buf *out)
{
    size_t was = out->len;
    return tokenizer_decode(t, id, tokenizer_n_text(t, id, n), true, out) && buf_nul_replace(out, was);
}
