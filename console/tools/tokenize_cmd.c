/* tokenize_cmd.c - rollcall tokenize: JSON lines of text to JSON lines of ids, or back */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/text/tokenizer.h"
#include "protocol/base/json_text.h"

#define LINE_BYTES_MAX ((size_t)1 << 30)

struct tokenize {
    const struct tokenizer *tokenizer;
    struct encoder *encoder;
    bool add_special, special_as_text, decode, skip_special;
    struct token_list ids;
    struct buf out;
};

static bool line_encode(struct tokenize *k, const json_t *row, struct error *err)
{
    const json_t *text = json_object_get(row, "text");
    if (!json_is_string(text))
        return error_set(err, ERR_DATA, "no string 'text'");
    k->ids.n = 0;
    unsigned flags = (k->add_special ? ENCODE_ADD_SPECIAL : 0) | (k->special_as_text ? ENCODE_SPECIAL_AS_TEXT : 0);
    if (!encoder_encode(k->encoder, json_string_value(text), json_string_length(text), flags, &k->ids, err))
        return false;
    buf_str(&k->out, "{\"ids\":[");
    for (int64_t i = 0; i < k->ids.n; i++)
        buf_fmt(&k->out, "%s%d", i ? "," : "", k->ids.id[i]);
    return buf_str(&k->out, "]}\n") || error_set(err, ERR_NO_MEMORY, "no memory for the ids");
}

static bool line_decode(struct tokenize *k, const json_t *row, struct error *err)
{
    const json_t *ids = json_object_get(row, "ids"), *one;
    size_t i;
    if (!json_is_array(ids))
        return error_set(err, ERR_DATA, "no list 'ids'");
    k->ids.n = 0;
    json_array_foreach(ids, i, one)
    {
        if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) > INT32_MAX)
            return error_set(err, ERR_DATA, "ids[%zu] is not an id", i);
        int32_t id = (int32_t)json_integer_value(one);
        if (!token_list_add(&k->ids, &id, 1))
            return error_set(err, ERR_NO_MEMORY, "no memory for the ids");
    }
    struct buf text = BUF_INIT;
    char *dumped = NULL;
    json_t *s = NULL;
    bool ok = tokenizer_decode(k->tokenizer, k->ids.id, k->ids.n, k->skip_special, &text);
    if (ok)
        ok = (s = json_stringn(buf_text(&text), text.len)) && (dumped = json_text_dump(s, JSON_ENCODE_ANY))
             && buf_fmt(&k->out, "{\"text\":%s}\n", dumped);
    if (!ok)
        error_set(err, ERR_NO_MEMORY, "no memory for the text");
    json_decref(s);
    free(dumped);
    buf_release(&text);
    return ok;
}

static bool lines_run(struct tokenize *k, struct error *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    bool ok = true;
    for (long n = 1; ok && (len = getline(&line, &cap, stdin)) >= 0; n++) {
        json_error_t why;
        if (strspn(line, " \t\r\n") == (size_t)len)
            continue;
        json_t *row = (size_t)len > LINE_BYTES_MAX ? NULL
                                                   : json_text_read(line, (size_t)len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        if (!row)
            ok = error_set(err, ERR_DATA, "stdin:%ld: %s", n, (size_t)len > LINE_BYTES_MAX ? "the line is too long" : why.text);
        else if (!(ok = k->decode ? line_decode(k, row, err) : line_encode(k, row, err)))
            error_wrap(err, "stdin:%ld", n);
        json_decref(row);
        if (ok && fwrite(buf_text(&k->out), 1, k->out.len, stdout) != k->out.len)
            ok = error_errno(err, "cannot write the output");
        buf_clear(&k->out);
    }
    if (ok && ferror(stdin))
        ok = error_errno(err, "cannot read the input");
    free(line);
    return ok;
}

static bool tokenize_cmd(int argc, char **argv, struct error *err)
{
    const char *path = NULL;
    struct tokenize k = { .out.max = (size_t)1 << 34 };
    // clang-format off
    struct cli_option options[] = {
        {"tokenizer", "t", CLI_STR, &path, "PATH|ORG/NAME",
         "a tokenizer.json, a model directory, or a model in the hub's cache"},
        {"add-special", NULL, CLI_FLAG, &k.add_special, NULL, "add the tokens that the post-processor puts around a text"},
        {"special-as-text", NULL, CLI_FLAG, &k.special_as_text, NULL, "do not recognise special tokens in the text"},
        {"decode", NULL, CLI_FLAG, &k.decode, NULL, "read {\"ids\":[...]}, write {\"text\":...}"},
        {"skip-special", NULL, CLI_FLAG, &k.skip_special, NULL, "leave special tokens out of decoded text"},
    };
    // clang-format on
    struct cli cli = { "rollcall tokenize",
                       "Reads JSON lines {\"text\":...} and writes {\"ids\":[...]}, or back with --decode.\n"
                       "Added tokens in the text are recognised; none is added unless requested.",
                       NULL,
                       options,
                       ARRAY_SIZE(options),
                       NULL,
                       0,
                       0,
                       false };
    char dir[4096];
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!path)
        return error_set(err, ERR_USAGE, "give the tokenizer with --tokenizer");
    if (!model_find(dir, sizeof dir, path, err))
        return false;
    struct tokenizer *t = tokenizer_load(dir, err);
    k.tokenizer = t;
    bool ok = t && (k.encoder = encoder_new(t, true, err)) && lines_run(&k, err);
    encoder_free(k.encoder);
    tokenizer_free(t);
    token_list_release(&k.ids);
    buf_release(&k.out);
    return ok;
}

const struct subcommand tokenize_subcommand = { "tokenize", tokenize_cmd, "text to token ids and back, as JSON lines" };
