/* reply_responses.c - answers in the shape of OpenAI's responses
 *
 * A stream repeats in its last event the whole answer, which clients read in place of what came before. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/http/openai_error.h"
#include "workers/serve/reply_parts.h"

static const char *const prefix[] = { [BLOCK_NONE] = "", [BLOCK_THINKING] = "rs", [BLOCK_TEXT] = "msg" };
static const char *const part[] = { [BLOCK_NONE] = "", [BLOCK_THINKING] = "reasoning_text", [BLOCK_TEXT] = "output_text" };

static void item_id(struct buf *out, const struct serve_job *j, const char *what, int n)
{
    buf_fmt(out, "\"%s_%s-%d\"", what, j->http.id, n);
}

static const char *status_of(const struct job_choice *c)
{
    return c->end == CHOICE_OPEN ? "in_progress" : c->end == CHOICE_STOP ? "completed" : "incomplete";
}

static void part_print(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    buf_fmt(p->out, "{\"type\":\"%s\",\"text\":", part[kind]);
    json_text_print(p->out, s, n, JSON_TEXT_UTF8);
    buf_str(p->out, kind == BLOCK_TEXT ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

/* An item; s NULL: it has no part yet. */
static void item_print(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    buf_fmt(p->out, "{\"type\":\"%s\",\"id\":", kind == BLOCK_THINKING ? "reasoning" : "message");
    item_id(p->out, p->j, prefix[kind], p->c->n_block);
    buf_fmt(p->out, ",\"status\":\"%s\",", s ? "completed" : "in_progress");
    buf_str(p->out, kind == BLOCK_THINKING ? "\"summary\":[],\"content\":[" : "\"role\":\"assistant\",\"content\":[");
    if (s)
        part_print(p, kind, s, n);
    buf_str(p->out, "]}");
}

static void call_print(struct block_print *p, int i, bool whole)
{
    const struct tool_call *call = &p->answer->calls.call[i];
    buf_str(p->out, "{\"type\":\"function_call\",\"id\":");
    item_id(p->out, p->j, "fc", p->c->n_block);
    buf_str(p->out, ",\"call_id\":\"");
    reply_call_id(p->out, p->j, 0, i);
    buf_str(p->out, "\",\"name\":");
    reply_string_print(p->out, call->name);
    buf_str(p->out, ",\"arguments\":");
    reply_string_print(p->out, whole ? call->arguments : "");
    buf_fmt(p->out, ",\"status\":\"%s\"}", whole ? "completed" : "in_progress");
}

/* The request's tools in this dialect's form: a function's fields beside its type. */
static void tools_print(struct buf *out, const json_t *tools)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        json_t *tool = json_pack("{s:s}", "type", "function");
        ok = tool && json_object_update(tool, json_object_get(json_array_get(tools, i), "function")) == 0
             && json_array_append(list, tool) == 0;
        json_decref(tool);
    }
    char *text = ok ? json_text_dump(list, 0) : NULL;
    if (text)
        buf_str(out, text);
    else
        out->failed = true;
    free(text);
    json_decref(list);
}

/* Everything before the list of items. */
static void head_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c)
{
    buf_fmt(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%.0f,\"status\":\"%s\",\"background\":false,\"error\":null,",
            j->http.id, floor(j->created_s), status_of(c));
    buf_str(out, "\"incomplete_details\":");
    buf_str(out, c->end == CHOICE_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_str(out, ",\"instructions\":null,\"metadata\":{},\"model\":");
    reply_string_print(out, x->model);
    buf_fmt(out, ",\"parallel_tool_calls\":%s,\"previous_response_id\":null,\"store\":false,\"temperature\":%.9g,\"top_p\":%.9g,",
            j->ask.parallel_tools ? "true" : "false", j->ask.temperature, j->ask.top_p);
    buf_fmt(out, "\"tool_choice\":\"%s\",\"tools\":", j->ask.no_calls ? "none" : "auto");
    tools_print(out, j->ask.tools);
    buf_fmt(out, ",\"truncation\":\"disabled\",\"weight_version\":%" PRId64 ",\"output\":[", reply_version(j));
}

/* Everything after it. */
static void tail_print(struct buf *out, const struct serve_job *j, bool ended)
{
    struct reply_usage u = reply_usage_of(j);
    buf_str(out, "],\"usage\":");
    if (ended)
        buf_fmt(out,
                "{\"input_tokens\":%" PRId64 ",\"input_tokens_details\":{\"cached_tokens\":%" PRId64 "},\"output_tokens\":%" PRId64
                ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%" PRId64 "}",
                u.n_prompt, u.n_cached, u.n_tok, u.n_prompt + u.n_tok);
    else
        buf_str(out, "null");
    if (ended)
        reply_all_ids_print(out, j);
    buf_char(out, '}');
}

/* ---- whole ---- */
static void whole_begin(struct block_print *p)
{
    head_print(p->out, p->x, p->j, p->c);
}

static void whole_open(UNUSED struct block_print *p, UNUSED enum block_kind kind)
{
}

static void whole_more(UNUSED struct block_print *p, UNUSED enum block_kind kind, UNUSED const char *s, UNUSED size_t n)
{
}

static void whole_close(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    buf_str(p->out, p->c->n_block > 0 ? "," : "");
    item_print(p, kind, s, n);
}

static void whole_call(struct block_print *p, int i)
{
    buf_str(p->out, p->c->n_block > 0 ? "," : "");
    call_print(p, i, true);
}

static void whole_end(struct block_print *p)
{
    tail_print(p->out, p->j, true);
}

void responses_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    static const struct block_shape shape = {
        .begin = whole_begin, .open = whole_open, .more = whole_more, .close = whole_close, .call = whole_call, .end = whole_end
    };
    struct job_choice c = choice_unsent(&j->choice[0]);
    out->failed |= !blocks_print(out, x, j, &c, &shape);
}

/* ---- a stream ---- */
static void event(struct block_print *p, const char *type)
{
    buf_fmt(p->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRId64, type, type, p->c->n_event++);
}

static void event_end(struct block_print *p)
{
    buf_str(p->out, "}\n\n");
}

static void item_event(struct block_print *p, const char *type)
{
    event(p, type);
    buf_fmt(p->out, ",\"output_index\":%d,\"item\":", p->c->n_block);
}

/* An event about the one part of the item that is open. */
static void part_event(struct block_print *p, enum block_kind kind, const char *type)
{
    event(p, type);
    buf_str(p->out, ",\"item_id\":");
    item_id(p->out, p->j, prefix[kind], p->c->n_block);
    buf_fmt(p->out, ",\"output_index\":%d,\"content_index\":0", p->c->n_block);
}

static void stream_begin(struct block_print *p)
{
    static const char *const types[] = { "response.created", "response.in_progress" };
    const struct job_choice open = { .end = CHOICE_OPEN };
    for (int i = 0; i < 2; i++) {
        event(p, types[i]);
        buf_str(p->out, ",\"response\":");
        head_print(p->out, p->x, p->j, &open);
        tail_print(p->out, p->j, false);
        event_end(p);
    }
}

static void stream_open(struct block_print *p, enum block_kind kind)
{
    item_event(p, "response.output_item.added");
    item_print(p, kind, NULL, 0);
    event_end(p);
    part_event(p, kind, "response.content_part.added");
    buf_str(p->out, ",\"part\":");
    part_print(p, kind, "", 0);
    event_end(p);
}

static void stream_more(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    part_event(p, kind, kind == BLOCK_THINKING ? "response.reasoning_text.delta" : "response.output_text.delta");
    buf_str(p->out, ",\"delta\":");
    json_text_print(p->out, s, n, JSON_TEXT_UTF8);
    buf_str(p->out, kind == BLOCK_TEXT ? ",\"logprobs\":[]" : "");
    event_end(p);
}

static void stream_close(struct block_print *p, enum block_kind kind, const char *s, size_t n)
{
    part_event(p, kind, kind == BLOCK_THINKING ? "response.reasoning_text.done" : "response.output_text.done");
    buf_str(p->out, ",\"text\":");
    json_text_print(p->out, s, n, JSON_TEXT_UTF8);
    buf_str(p->out, kind == BLOCK_TEXT ? ",\"logprobs\":[]" : "");
    event_end(p);
    part_event(p, kind, "response.content_part.done");
    buf_str(p->out, ",\"part\":");
    part_print(p, kind, s, n);
    event_end(p);
    item_event(p, "response.output_item.done");
    item_print(p, kind, s, n);
    event_end(p);
}

static void stream_call(struct block_print *p, int i)
{
    static const char *const types[] = { "response.function_call_arguments.delta", "response.function_call_arguments.done" };
    item_event(p, "response.output_item.added");
    call_print(p, i, false);
    event_end(p);
    for (int k = 0; k < 2; k++) {
        event(p, types[k]);
        buf_str(p->out, ",\"item_id\":");
        item_id(p->out, p->j, "fc", p->c->n_block);
        buf_fmt(p->out, ",\"output_index\":%d,\"%s\":", p->c->n_block, k ? "arguments" : "delta");
        reply_string_print(p->out, p->answer->calls.call[i].arguments);
        if (k) {
            buf_str(p->out, ",\"name\":");
            reply_string_print(p->out, p->answer->calls.call[i].name);
        }
        event_end(p);
    }
    item_event(p, "response.output_item.done");
    call_print(p, i, true);
    event_end(p);
}

static void stream_end(struct block_print *p)
{
    event(p, p->c->end == CHOICE_STOP ? "response.completed" : "response.incomplete");
    buf_str(p->out, ",\"response\":");
    responses_print(p->out, p->x, p->j);
    event_end(p);
}

bool responses_stream(struct buf *out, const struct reply_context *x, struct serve_job *j)
{
    static const struct block_shape shape = {
        .begin = stream_begin, .open = stream_open, .more = stream_more, .close = stream_close, .call = stream_call, .end = stream_end
    };
    if (j->failed) {
        char text[ERROR_TEXT_BYTES];
        error_tell(&j->err, text);
        buf_fmt(out,
                "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%" PRId64
                ",\"code\":\"server_error\",\"param\":null,\"message\":",
                j->choice[0].n_event);
        reply_string_print(out, text);
        buf_str(out, "}\n\n");
        return true;
    }
    out->failed |= !blocks_print(out, x, j, &j->choice[0], &shape);
    return j->http.done;
}
