/* bench_tokenize.c - how fast text becomes tokens and back, on one thread */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "console/bench/bench.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/text/tokenizer.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

/* Processor time of this thread: other load on the machine does not count (except for its use of the caches). */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Encode text in pieces of about 20 kB (documents), repeatedly for at least `seconds`. Returns MB/s; 0 and err: failed. */
static double encode_speed(const struct tokenizer *t, const struct buf *text, bool cache, double seconds, struct token_list *ids,
                           struct error *err)
{
    struct encoder *e = encoder_new(t, cache, err);
    double best = 0, spent = 0;
    bool ok = e != NULL;
    while (ok && (spent < seconds || best == 0)) {    // the best pass: others use the machine too
        int64_t from = cpu_ns();
        ids->n = 0;
        for (size_t at = 0; ok && at < text->len;) {
            size_t len = MIN((size_t)20000, text->len - at);
            while (at + len < text->len && (text->data[at + len] & 0xC0) == 0x80)
                len++;
            ok = encoder_encode(e, text->data + at, len, 0, ids, err);
            at += len;
        }
        double took = (double)(cpu_ns() - from) * 1e-9;
        best = MAX(best, (double)text->len / took / 1e6);
        spent += took;
    }
    encoder_free(e);
    return ok ? best : 0;
}

static double decode_speed(const struct tokenizer *t, const struct token_list *ids, double seconds, struct error *err)
{
    struct buf out = { .max = TEXT_BYTES_MAX * 8 };
    double best = 0, spent = 0;
    bool ok = true;
    while (ok && (spent < seconds || best == 0)) {
        int64_t from = cpu_ns();
        buf_clear(&out);
        ok = tokenizer_decode(t, ids->id, ids->n, false, &out) || error_set(err, ERR_NO_MEMORY, "no memory for the text");
        double took = (double)(cpu_ns() - from) * 1e-9;
        best = MAX(best, (double)out.len / took / 1e6);
        spent += took;
    }
    buf_release(&out);
    return ok ? best : 0;
}

bool bench_tokenize(int argc, char **argv, struct error *err)
{
    const char *path = NULL, *file = NULL;
    double seconds = 2;
    struct cli_option options[] = {
        { "tokenizer", "t", CLI_STR, &path, "PATH|ORG/NAME", "a tokenizer.json, a model directory, or a model in the hub's cache" },
        { "text", NULL, CLI_STR, &file, "FILE", "the text, UTF-8; a few megabytes at least" },
        { "seconds", NULL, CLI_F64, &seconds, "S", "time for each measurement (2)" },
    };
    struct cli cli = { "rollcall bench tokenize",
                       "Encodes a text with and without the word cache and decodes it: MB/s of the best pass, in "
                       "processor time of one thread.\n"
                       "tests/golden/make_tokenizers.py bench compares it with the tokenizers library and tiktoken.",
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
    if (!path || !file)
        return error_set(err, ERR_USAGE, "--tokenizer and --text are needed");
    struct buf text = { .max = TEXT_BYTES_MAX + 65536 };
    struct token_list ids = { 0 };
    struct tokenizer *t = NULL;
    bool ok = false;
    TRY(model_find(dir, sizeof dir, path, err));
    int64_t from = cpu_ns();
    TRY((t = tokenizer_load(dir, err)) != NULL);
    double load_ms = (double)(cpu_ns() - from) * 1e-6;
    TRY(file_read(&text, file, TEXT_BYTES_MAX, err));
    if (text.len == 0) {
        error_set(err, ERR_DATA, "'%s' is empty", file);
        goto out;
    }
    double plain = encode_speed(t, &text, false, seconds, &ids, err);
    double cached = plain > 0 ? encode_speed(t, &text, true, seconds, &ids, err) : 0;
    double decoded = cached > 0 ? decode_speed(t, &ids, seconds, err) : 0;
    if (decoded <= 0)
        goto out;
    printf("%-24s %10.1f ms   %d ids\n", "load", load_ms, tokenizer_n_id(t));
    printf("%-24s %10.1f MB/s\n", "encode, no word cache", plain);
    printf("%-24s %10.1f MB/s   %.2f x without\n", "encode, word cache", cached, cached / plain);
    printf("%-24s %10.1f MB/s   %.2f x encoding\n", "decode", decoded, decoded / cached);
    printf("%-24s %10.2f bytes per token, %zu bytes, %" PRId64 " tokens\n", "text", (double)text.len / (double)ids.n, text.len, ids.n);
    ok = true;
out:
    tokenizer_free(t);
    token_list_release(&ids);
    buf_release(&text);
    return ok;
}
