/* tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include "protocol/base/file.h"
#include "workers/engine/text/pretok.h"
#include "workers/engine/text/tokenizer.h"

static const char *const kinds[] = { "qwen2",   "llama3", "gpt2",       "smollm", "odd",    "words", "marks",   "marks2",
                                     "classes", "llama2", "llama2-new", "gemma",  "marked", "fused", "unigram", "unigram-t5" };

static struct tokenizer *fixture_load(const char *kind)
{
    char path[512];
    struct error err = { 0 };
    snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/%s.json", kind);
    struct tokenizer *t = tokenizer_load(path, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static void ids_check(const json_t *want, const struct token_list *got, const char *kind, int line)
{
    bool same = json_array_size(want) == (size_t)got->n;
    for (int64_t i = 0; same && i < got->n; i++)
        same = json_integer_value(json_array_get(want, (size_t)i)) == got->id[i];
    if (!same)
        fail_msg("%s.jsonl:%d: other ids", kind, line);
}

/* Decode token by token and check that every piece is whole UTF-8 on its own. */
static void stream_check(const struct tokenizer *t, const struct token_list *ids, const char *want)
{
    struct decoder d = { .tokenizer = t };
    struct buf all = BUF_INIT;
    for (int64_t i = 0; i <= ids->n; i++) {
        struct buf piece = BUF_INIT;
        assert_true(i < ids->n ? decoder_push(&d, ids->id[i], &piece) : decoder_end(&d, &piece));
        assert_int_equal(utf8_valid_len((const uint8_t *)buf_text(&piece), piece.len, NULL, NULL), piece.len);
        buf_add(&all, buf_text(&piece), piece.len);
        buf_release(&piece);
    }
    assert_string_equal(buf_text(&all), want);
    buf_release(&all);
}

static void text_becomes_the_ids_that_tokenizers_gives_and_back(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        struct error err = { 0 };
        struct tokenizer *t = fixture_load(kinds[k]);
        struct encoder *e[2] = { encoder_new(t, false, &err), encoder_new(t, true, &err) };
        char path[512], *line = NULL;
        size_t cap = 0;
        snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/%s.jsonl", kinds[k]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        for (int n = 1; getline(&line, &cap, f) > 0; n++) {
            json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *text = json_object_get(row, "text");
            struct token_list ids = { 0 };
            for (int again = 0; again < 3; again++) {    // without the cache, filling it, and from it
                ids.n = 0;
                assert_true(encoder_encode(e[again > 0], json_string_value(text), json_string_length(text), 0, &ids, &err));
                ids_check(json_object_get(row, "ids"), &ids, kinds[k], n);
            }
            struct buf out = BUF_INIT;
            const json_t *whole = json_object_get(row, "decoded"), *skipped = json_object_get(row, "skipped");
            assert_true(tokenizer_decode(t, ids.id, ids.n, false, &out));
            assert_int_equal(out.len, json_string_length(whole));
            assert_memory_equal(buf_text(&out), json_string_value(whole), out.len);
            if (strlen(buf_text(&out)) == out.len)
                stream_check(t, &ids, buf_text(&out));
            buf_clear(&out);
            assert_true(tokenizer_decode(t, ids.id + 1, ids.n - 1, true, &out));
            assert_int_equal(out.len, json_string_length(skipped));
            assert_memory_equal(buf_text(&out), json_string_value(skipped), out.len);
            buf_release(&out);
            token_list_release(&ids);
            json_decref(row);
        }
        fclose(f);
        free(line);
        encoder_free(e[0]);
        encoder_free(e[1]);
        tokenizer_free(t);
    }
}

struct pieces {
    size_t len[4096];
    int n;
};
static bool piece_note(void *arg, UNUSED const uint8_t *piece, size_t len)
{
    struct pieces *p = arg;
    p->len[p->n++] = len;
    return true;
}

static void handwritten_matchers_cut_where_pcre2_cuts(UNUSED void **state)
{
    static const char *const some[] = {
        " ", "  ", "\n",  "\r",        "\t", "a",        "Z",        "\xC3\xA9",     "\xE4\xBD\xA0",     "1",     "23",  "\xC2\xBD", ".",
        "'", "'s", "'LL", "'\xC5\xBF", "-",  "\xCC\x81", "\xC2\xA0", "\xE3\x80\x80", "\xF0\x9F\x91\xA9", "don't", "\x1c"
    };
    struct unicode u;
    struct error err = { 0 };
    assert_true(unicode_init(&u, &err));
    for (size_t k = 0; k < 3; k++) {    // the three published patterns
        struct pretok by_hand, by_regex;
        char path[512];
        snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/%s.json", kinds[k]);
        json_t *file = json_load_file(path, 0, NULL), *spec = json_object_get(file, "pre_tokenizer");
        if (!pretok_init(&by_hand, spec, &u, false, &err) || !pretok_init(&by_regex, spec, &u, true, &err))
            fail_msg("%s", err.text);
        struct pretok_scratch s = { 0 };
        unsigned seed = 1;
        for (int round = 0; round < 4000; round++) {
            char text[256] = "";
            for (int n = rand_r(&seed) % 20 + 1; n > 0; n--)
                strncat(text, some[(size_t)rand_r(&seed) % ARRAY_SIZE(some)], sizeof text - strlen(text) - 1);
            struct pieces a = { .n = 0 }, b = { .n = 0 };
            assert_true(pretok_walk(&by_hand, (const uint8_t *)text, strlen(text), true, &s, piece_note, &a, &err));
            assert_true(pretok_walk(&by_regex, (const uint8_t *)text, strlen(text), true, &s, piece_note, &b, &err));
            if (a.n != b.n || memcmp(a.len, b.len, (size_t)a.n * sizeof a.len[0]) != 0)
                fail_msg("%s cuts '%s' otherwise", kinds[k], text);
        }
        pretok_scratch_release(&s);
        pretok_release(&by_hand);
        pretok_release(&by_regex);
        json_decref(file);
    }
    unicode_release(&u);
}

static void bytes_that_are_not_text_become_one_mark_per_maximal_part(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *in, *want;
    } cases[] = {
        {"\x80", "\xEF\xBF\xBD"},
        {"\xE4\xBD", "\xEF\xBF\xBD"},
        {"\xE4\xBD"
         "a",
         "\xEF\xBF\xBD"
         "a"},
        {"\xF0\x9F\x91\xE4\xBD\xA0", "\xEF\xBF\xBD\xE4\xBD\xA0"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, // a surrogate: no part of it can begin a character
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (size_t cut = 0; cut <= strlen(cases[i].in); cut++) {    // in one piece, and in two however cut
            struct utf8_stream s = { 0 };
            struct buf out = BUF_INIT;
            const uint8_t *p = (const uint8_t *)cases[i].in;
            assert_true(utf8_stream_push(&s, p, cut, &out) && utf8_stream_push(&s, p + cut, strlen(cases[i].in) - cut, &out));
            assert_true(utf8_stream_end(&s, &out));
            assert_string_equal(buf_text(&out), cases[i].want);
            buf_release(&out);
        }
}

static void a_long_run_of_unordered_marks_is_sorted_in_time(UNUSED void **state)
{
    struct unicode u;
    struct error err = { 0 };
    struct buf text = BUF_INIT, out = BUF_INIT;
    assert_true(unicode_init(&u, &err));
    buf_char(&text, 'a');
    for (int i = 0; i < 200000; i++)
        buf_str(&text, i % 2 ? "\xCC\x96" : "\xCC\x8D");    // U+0316 (220) and U+030D (230) by turns
    assert_true(unicode_normalize(&u, FORM_NFC, (const uint8_t *)text.data, text.len, &out, &err));
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.data + 1, "\xCC\x96\xCC\x96", 4);
    assert_memory_equal(out.data + out.len - 4, "\xCC\x8D\xCC\x8D", 4);
    buf_release(&text);
    buf_release(&out);
    unicode_release(&u);
}

/* A small tokenizer.json with one thing wrong. */
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define REST "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"

#define TEXT "\"decoder\":{\"type\":\"Fuse\"},"

static void a_wrong_tokenizer_file_is_refused_with_its_place(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *json, *want;
    } cases[] = {
        {"{" REST MODEL "}", NULL},
        {"{" REST "\"added_tokens\":[{\"id\":3,\"content\":\"<x>\"}]," MODEL "}", NULL},
        {"{" REST MODEL "} \n\t", NULL},
        {"{" REST MODEL "}\n}", "t.json:2: there is more after the end of the JSON document"},
        {"{" REST MODEL "}{}", "t.json:1: there is more after the end"},
        {"", "t.json:1: the text ends where '{' is expected"},
        {"{\n\n\"a\":[1,}", "t.json:3: a value is expected"},
        {"{" REST "\"model\":{\"type\":\"WordPiece\"}}", "the model is 'WordPiece'"},
        {"{" REST "\"model\":{\"type\":\"Unigram\"}}", "no 'model' with 'vocab'"},
        {"{" TEXT "\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",-1],[\"\",0.0],[\"b\",-2.5]]}}", NULL},
        {"{" REST "\"model\":{\"vocab\":[[\"a\",-1]]}}", "Unigram with a ByteLevel pre_tokenizer"},
        {"{" TEXT "\"padding\":{\"strategy\":1},\"truncation\":{" MODEL "}", "t.json:1"},
        {"{" TEXT "\"model\":{\"unk_id\":3,\"vocab\":[[\"a\",-1],[\"b\",-2.5]]}}", "the unknown token is not in the vocabulary"},
        {"{" TEXT "\"model\":{\"vocab\":[[\"a\",-1],\n[\"b\",\"x\"]]}}", "t.json:2: the score of 'b' is not a number"},
        {"{" TEXT "\"model\":{\"vocab\":[[\"a\",-1],[\"a\",-2]]}}", "already exists with another id"},
        {"{" TEXT "\"model\":{\"vocab\":[[\"a\"]]}}", "','"},
        {"{" TEXT MODEL "}", NULL},
        {"{" TEXT "\"model\":{\"byte_fallback\":true,\"vocab\":{\"a\":0},\"merges\":[]}}", "lacks the byte <0x00>"},
        {"{" TEXT "\"model\":{\"unk_token\":7,\"vocab\":{\"a\":0},\"merges\":[]}}", "the model's 'unk_token' is not a string"},
        {"{" TEXT "\"model\":{\"unk_token\":\"<unk>\",\"vocab\":{\"a\":0},\"merges\":[]}}", "the unknown token is not in"},
        {"{" TEXT "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"a\"}," MODEL "}",
         "'Replace' of a regular expression"},
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}," MODEL "}",
         "the decoder 'Strip' is not supported, or not in its place"},
        {"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", "the decoder 'WordPiece'"},
        {"{\"decoder\":null," MODEL "}", NULL},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":null," MODEL "}", NULL},
        {"{" TEXT "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}," MODEL "}",
         "'prepend_scheme' that is not known"},
        {"{" TEXT "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}," MODEL "}",
         "'prepend_scheme' that is not known"},
        {"{" REST "\"model\":{\"vocab\":{\"a\":0},\n\"merges\":[\"a b\"]}}",
         "t.json:2: merge 0: its second part is not in the vocabulary"},
        {"{" REST "\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "id 0 is given twice"},
        {"{" REST "\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "already exists with another id"},
        {"{" REST "\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", "outside 0.."},
        {"{" REST "\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "outside 0.."},
        {"{" REST "\"added_tokens\":[{\"id\":2,\"content\":\"<x>\"}]," MODEL "}", "the vocabulary says otherwise"},
        {"{" REST "\"added_tokens\":[{\"id\":5,\"content\":\"ab\"}]," MODEL "}", "the vocabulary says otherwise"},
        {"{" REST "\"added_tokens\":[{\"id\":5,\"content\":\"x\"},{\"id\":5,\"content\":\"y\"}]," MODEL "}",
         "as another one"},
        {"{" REST "\"normalizer\":{\"type\":\"Precompiled\"}," MODEL "}", "normalizer 'Precompiled'"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"decoder\":{\"type\":\"ByteLevel\"}," MODEL "}",
         "Metaspace in pre_tokenizer has no 'replacement'"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},"
         "\"decoder\":{\"type\":\"ByteLevel\"}," MODEL "}",
         "the pattern '(' is wrong"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Isolated\"},"
         "\"decoder\":{\"type\":\"ByteLevel\"}," MODEL "}",
         "the escape '\\h'"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct tokenizer *t = tokenizer_parse(cases[i].json, strlen(cases[i].json), "t.json", &err);
        if (!cases[i].want)
            assert_non_null(t);
        else if (t || !strstr(err.text, cases[i].want))
            fail_msg("case %zu: wanted '%s', got '%s'", i, cases[i].want, t ? "a tokenizer" : err.text);
        tokenizer_free(t);
    }
    char path[512];
    struct buf text = BUF_INIT;
    struct error err = { 0 };
    snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/odd.json");
    assert_true(file_read(&text, path, 1 << 20, &err));
    for (size_t cut = 0; cut < text.len - 1; cut += 97) {    // no prefix of a file is a file
        struct tokenizer *t = tokenizer_parse(buf_text(&text), cut, "cut", &err);
        assert_null(t);
    }
    buf_release(&text);
}

/* As the tokenizers library decodes where tokens are text: they are joined by blanks. Bytes are bytes all the same. */
static void tokens_without_a_decoder_are_joined_by_blanks_or_are_bytes(UNUSED void **state)
{
    static const struct {
        const char *json, *want;
    } cases[] = {
        { "{\"decoder\":null," MODEL "}", "ab a ab" },
        { "{" MODEL "}", "ab a ab" },
        { "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":null," MODEL "}", "abaab" },
    };
    static const int32_t id[] = { 2, 0, 2 };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf text = BUF_INIT;
        struct tokenizer *t = tokenizer_parse(cases[i].json, strlen(cases[i].json), "t.json", &err);
        if (!t)
            fail_msg("%s", err.text);
        assert_true(tokenizer_decode(t, id, 3, false, &text));
        assert_string_equal(buf_text(&text), cases[i].want);
        buf_release(&text);
        tokenizer_free(t);
    }
}

/* Qwen2's tokenizer.json in a directory with the files that name its end tokens. */
static struct tokenizer *qwen2_directory_load(struct error *err)
{
    static const struct {
        const char *name, *text;
    } files[] = {
        { "tokenizer_config.json", "{\"eos_token\":{\"content\":\"<|im_end|>\"},\"pad_token\":\"<|endoftext|>\",\"bos_token\":null}" },
        { "generation_config.json", "{\"eos_token_id\":[602,600],\"pad_token_id\":1}" },
    };
    char dir[] = "/tmp/tokenizer-test-XXXXXX", path[600];
    struct buf text = BUF_INIT;
    assert_non_null(mkdtemp(dir));
    assert_true(file_read(&text, TEST_DATA_DIR "/golden/tokenizer/qwen2.json", 1 << 20, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_true(file_write(path, buf_text(&text), text.len, err));
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        assert_true(file_write(path, files[i].text, strlen(files[i].text), err));
    }
    struct tokenizer *t = tokenizer_load(dir, err);
    assert_non_null(t);
    buf_release(&text);
    assert_true(dir_remove(dir, err));
    return t;
}

/* Tokenizers of three tokens: the one itself, one whose second token is another, and one with a token more. */
static void tokenizers_are_the_same_when_each_id_is_the_same_text(UNUSED void **state)
{
    static const struct {
        const char *vocab, *why;
    } cases[] = {
        { "{\"a\":0,\"b\":1,\"c\":2}", NULL },
        { "{\"a\":0,\"x\":1,\"c\":2}", "token 1 is 'b' in 'one' and 'x' in 'other'" },
        { "{\"a\":0,\"b\":1,\"c\":2,\"d\":3}", "token 3 is '' in 'one' and 'd' in 'other'" },
    };
    struct tokenizer *one = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        char json[512];
        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
                 "\"model\":{\"type\":\"BPE\",\"vocab\":%s,\"merges\":[]}}",
                 cases[i].vocab);
        struct tokenizer *other = tokenizer_parse(json, strlen(json), "t.json", &err);
        if (!other)
            fail_msg("%s", err.text);
        one = i == 0 ? other : one;
        assert_int_equal(tokenizer_same(one, "one", other, "other", &err), cases[i].why == NULL);
        assert_true(!cases[i].why || strcmp(err.text, cases[i].why) == 0);
        if (i > 0)
            tokenizer_free(other);
    }
    tokenizer_free(one);
}

static void special_tokens_of_a_directory_are_found(UNUSED void **state)
{
    struct error err = { 0 };
    struct tokenizer *t = qwen2_directory_load(&err);
    int n;
    const int32_t *eos = tokenizer_eos(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(eos[0], 602);
    assert_int_equal(eos[1], 600);
    int32_t id;
    assert_true(tokenizer_find(t, "<think>", &id) && !tokenizer_is_eos(t, id));
    assert_true(tokenizer_find(t, "<|im_end|>", &id) && tokenizer_is_eos(t, id));
    assert_false(tokenizer_find(t, "<|nothing|>", &id));
    assert_int_equal(tokenizer_n_id(t), 605);
    tokenizer_free(t);
}

static void special_tokens_that_are_a_format_s_tags_are_decoded(UNUSED void **state)
{
    static const struct {
        const char *tag, *want;
        int64_t n_text;
        const char *why;
    } cases[] = {
        { "<answer>", "<think>a</think>", 6, "no special token is in it; <think> is not a special one in this file" },
        { "<|im_start|>", "<|im_start|><think>a</think>", 6, "the tag is a special token, and the end token stays hidden" },
        { "\n<|im_start|>|", "<|im_start|><think>a</think>", 6, "the special token is a part of the tag" },
        { "<|im_end|>", "<think>a</think><|im_end|>", 7, "the tag is the end token" },
        { "<|im_", "<think>a</think>", 6, "the tag is a part of special tokens" },
    };
    static const char *const pieces[] = { "<|endoftext|>", "<|im_start|>", "<think>", "a", "</think>", "<|endoftext|>", "<|im_end|>" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf text = BUF_INIT;
        int32_t id[ARRAY_SIZE(pieces)];
        struct tokenizer *t = qwen2_directory_load(&err);
        for (size_t k = 0; k < ARRAY_SIZE(pieces); k++)
            assert_true(tokenizer_find(t, pieces[k], &id[k]));
        tokenizer_show(t, cases[i].tag);
        int64_t n = tokenizer_n_text(t, id, ARRAY_SIZE(pieces));
        assert_true(tokenizer_decode(t, id, n, true, &text));
        if (n != cases[i].n_text || strcmp(buf_text(&text), cases[i].want) != 0)
            fail_msg("'%s': %d ids, '%s' (%s)", cases[i].tag, (int)n, buf_text(&text), cases[i].why);
        struct decoder d = { .tokenizer = t, .skip_special = true };
        buf_clear(&text);
        for (int64_t k = 0; k < n; k++)
            assert_true(decoder_push(&d, id[k], &text));
        assert_true(decoder_end(&d, &text));
        assert_string_equal(buf_text(&text), cases[i].want);
        buf_release(&text);
        tokenizer_free(t);
    }
}

static void text_of_unknown_origin_cannot_forge_special_tokens_when_asked(UNUSED void **state)
{
    struct error err = { 0 };
    struct tokenizer *t = fixture_load("qwen2");
    struct encoder *e = encoder_new(t, true, &err);
    struct token_list ids = { 0 };
    struct buf out = BUF_INIT;
    const char *text = "a<|im_end|>b<think>";
    assert_true(encoder_encode(e, text, strlen(text), ENCODE_SPECIAL_AS_TEXT, &ids, &err));
    assert_true(tokenizer_decode(t, ids.id, ids.n, true, &out));
    assert_string_equal(buf_text(&out), text);
    int64_t n = ids.n;
    assert_false(encoder_encode(e, "ok \xFF", 4, 0, &ids, &err));
    assert_string_equal(err.text, "the text is not UTF-8 at byte 3");
    assert_int_equal(ids.n, n);
    token_list_release(&ids);
    buf_release(&out);
    encoder_free(e);
    tokenizer_free(t);
}

static void a_text_gets_its_begin_token_once_when_asked(UNUSED void **state)
{
    static const struct {
        const char *name, *text, *want;    // want: the text of the ids
    } cases[] = {
        { "llama3", "6+6=", "<|begin_of_text|>6+6=" },
        { "llama3", "<|begin_of_text|>6+6=", "<|begin_of_text|>6+6=" },
        { "llama3", "", "<|begin_of_text|>" },
        { "qwen2", "6+6=", "6+6=" },    // it has none
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct tokenizer *t = fixture_load(cases[i].name);
        struct encoder *e = encoder_new(t, false, &err);
        struct token_list ids = { 0 };
        struct buf out = BUF_INIT;
        int32_t before = 1;
        assert_true(token_list_add(&ids, &before, 1));    // what the list held stays
        assert_true(encoder_encode(e, cases[i].text, strlen(cases[i].text), ENCODE_ADD_BEGIN, &ids, &err));
        assert_int_equal(ids.id[0], before);
        assert_true(tokenizer_decode(t, ids.id + 1, ids.n - 1, false, &out));
        assert_string_equal(buf_text(&out), cases[i].want);
        token_list_release(&ids);
        buf_release(&out);
        encoder_free(e);
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_the_ids_that_tokenizers_gives_and_back),
        cmocka_unit_test(handwritten_matchers_cut_where_pcre2_cuts),
        cmocka_unit_test(bytes_that_are_not_text_become_one_mark_per_maximal_part),
        cmocka_unit_test(a_long_run_of_unordered_marks_is_sorted_in_time),
        cmocka_unit_test(a_wrong_tokenizer_file_is_refused_with_its_place),
        cmocka_unit_test(tokens_without_a_decoder_are_joined_by_blanks_or_are_bytes),
        cmocka_unit_test(tokenizers_are_the_same_when_each_id_is_the_same_text),
        cmocka_unit_test(special_tokens_of_a_directory_are_found),
        cmocka_unit_test(special_tokens_that_are_a_format_s_tags_are_decoded),
        cmocka_unit_test(a_text_gets_its_begin_token_once_when_asked),
        cmocka_unit_test(text_of_unknown_origin_cannot_forge_special_tokens_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
