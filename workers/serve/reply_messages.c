/* reply_messages.c - answers in the shape of Anthropic's messages */
#include <inttypes.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/http/openai_error.h"
#include "workers/serve/reply_parts.h"

static const char *stop_reason(const struct job_choice *c, const struct answer_parts *a)
{
    if (c->end == CHOICE_LENGTH)
        return "max_tokens";
    if (c->text.stopped_by >= 0)
        return "stop_sequence";
    return a->calls.n > 0 ? "tool_use" : "end_turn";
}

static void stop_print(struct buf *out, const struct job_choice *c, const struct answer_parts *a)
{
    buf_fmt(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c, a));
    if (c->end == CHOICE_STOP && c->text.stopped_by >= 0)
        reply_string_print(out, c->text.stop[c->text.stopped_by]);
    else
        buf_str(out, "null");
}

/* Tokens of the prompt that were run are counted apart from those that an earlier request had left. */
static void usage_print(struct buf *out, const struct serve_job *j)
{
    struct reply_usage u = reply_usage_of(j);
    buf_fmt(out,
            "\"usage\":{\"input_tokens\":%" PRId64 ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%" PRId64
            ",\"output_tokens\":%" PRId64 "}",
            u.n_prompt - u.n_cached, u.n_cached, u.n_tok);
}

static void head_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    buf_fmt(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", j->http.id);
    reply_string_print(out, x->model);
    buf_fmt(out, ",\"weight_version\":%" PRId64 ",\"content\":[", reply_version(j));
}

static void call_open(struct block_print *p, int i)
{
    buf_str(p->out, "{\"type\":\"tool_use\",\"id\":\"");
    reply_call_id(p->out, p->j, 0, i);
    buf_str(p->out, "\",\"name\":");
    reply_string_print(p->out, p->answer->calls.call[i].name);
    buf_str(p->out, ",\"input\":");
}

/* ---- whole ---- */
static void whole_begin(struct block_print *p)
{
    head_print(p->out, p->x, p->j);
}

static void whole_open(UNUSED struct block_print *p, UNUSED enum block_kind kind)
{
}

static void whole_more(UNUSED struct block_print *p, UNUSED enum block_kind kind, UNUSED const char *s, UNUSED size_t n)
{
}

static void whole_close(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    const char *name = kind == BLOCK_THINKING ? "thinking" : "text";
    buf_fmt(p->out, "%s{\"type\":\"%s\",\"%s\":", p->c->n_block > 0 ? "," : "", name, name);
    json_text_print(p->out, s, n, JSON_TEXT_UTF8);
    buf_str(p->out, kind == BLOCK_THINKING ? ",\"signature\":\"\"}" : "}");
}

static void whole_call(struct block_print *p, int i)
{
    const char *arguments = p->answer->calls.call[i].arguments;
    json_t *o = json_text_read(arguments, strlen(arguments), 0, NULL);    // a client expects an object
    buf_str(p->out, p->c->n_block > 0 ? "," : "");
    call_open(p, i);
    buf_str(p->out, json_is_object(o) ? arguments : "{}");
    buf_char(p->out, '}');
    json_decref(o);
}

static void whole_end(struct block_print *p)
{
    buf_str(p->out, "],");
    stop_print(p->out, p->c, p->answer);
    buf_char(p->out, ',');
    usage_print(p->out, p->j);
    reply_all_ids_print(p->out, p->j);
    buf_char(p->out, '}');
}

void messages_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    static const struct block_shape shape = {
        .begin = whole_begin, .open = whole_open, .more = whole_more, .close = whole_close, .call = whole_call, .end = whole_end
    };
    struct job_choice c = choice_unsent(&j->choice[0]);
    out->failed |= !blocks_print(out, x, j, &c, &shape);
}

/* ---- a stream ---- */
static void event(struct buf *out, const char *type)
{
    buf_fmt(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void event_end(struct buf *out)
{
    buf_str(out, "}\n\n");
}

static void indexed(struct block_print *p, const char *type)
{
    event(p->out, type);
    buf_fmt(p->out, ",\"index\":%d", p->c->n_block);
}

static void stream_begin(struct block_print *p)
{
    event(p->out, "message_start");
    buf_str(p->out, ",\"message\":");
    head_print(p->out, p->x, p->j);
    buf_str(p->out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    usage_print(p->out, p->j);
    buf_char(p->out, '}');
    event_end(p->out);
}

static void stream_open(struct block_print *p, enum block_kind kind)
{
    indexed(p, "content_block_start");
    buf_str(p->out, kind == BLOCK_THINKING ? ",\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                                           : ",\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    event_end(p->out);
}

static void stream_more(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    const char *name = kind == BLOCK_THINKING ? "thinking" : "text";
    indexed(p, "content_block_delta");
    buf_fmt(p->out, ",\"delta\":{\"type\":\"%s_delta\",\"%s\":", name, name);
    json_text_print(p->out, s, n, JSON_TEXT_UTF8);
    buf_char(p->out, '}');
    event_end(p->out);
}

static void stream_close(struct block_print *p, UNUSED enum block_kind kind, UNUSED const char *s, UNUSED size_t n)
{
    indexed(p, "content_block_stop");
    event_end(p->out);
}

static void stream_call(struct block_print *p, int i)
{
    indexed(p, "content_block_start");
    buf_str(p->out, ",\"content_block\":");
    call_open(p, i);
    buf_str(p->out, "{}}");
    event_end(p->out);
    indexed(p, "content_block_delta");
    buf_str(p->out, ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
    reply_string_print(p->out, p->answer->calls.call[i].arguments);
    buf_char(p->out, '}');
    event_end(p->out);
    indexed(p, "content_block_stop");
    event_end(p->out);
}

static void stream_end(struct block_print *p)
{
    event(p->out, "message_delta");
    buf_str(p->out, ",\"delta\":{");
    stop_print(p->out, p->c, p->answer);
    buf_str(p->out, "},");
    usage_print(p->out, p->j);
    reply_all_ids_print(p->out, p->j);
    event_end(p->out);
    event(p->out, "message_stop");
    event_end(p->out);
}

bool messages_stream(struct buf *out, const struct reply_context *x, struct serve_job *j)
{
    static const struct block_shape shape = {
        .begin = stream_begin, .open = stream_open, .more = stream_more, .close = stream_close, .call = stream_call, .end = stream_end
    };
    if (j->failed) {
        char text[ERROR_TEXT_BYTES];
        error_tell(&j->err, text);
        buf_str(out, "event: error\ndata: ");
        anthropic_error_print(out, 500, text);
        buf_str(out, "\n\n");
        return true;
    }
    out->failed |= !blocks_print(out, x, j, &j->choice[0], &shape);
    return j->http.done;
}
