/* gguf_words.c - tokenizer.json and tokenizer_config.json of a GGUF file
 *
 * Two kinds of tokenizers are read: byte-level BPE ("gpt2"), and SentencePiece's ("llama"), which is BPE on text whose merges the file
 * does not have: they follow from the scores of its tokens (gguf_merges.h). What a SentencePiece tokenizer does to spaces depends on the
 * architecture; its forms are those that transformers builds.
 *
 * A byte-level file names how its text is cut ("tokenizer.ggml.pre"), and llama.cpp knows what each name means (llama-vocab.cpp,
 * llama_vocab::impl::load); the table below has that. A name that is not listed is refused. Old files have none: for them GPT-2's pattern is
 * taken, as transformers does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/macros.h"
#include "workers/engine/load/gguf.h"
#include "workers/engine/load/gguf_dir.h"
#include "workers/engine/load/gguf_merges.h"

#define GPT4_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define GPT4_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 GPT4_HEAD "\\p{N}{1,3}" GPT4_TAIL
#define QWEN2 GPT4_HEAD "\\p{N}" GPT4_TAIL
#define UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN UPPER "*" LOWER "+|" UPPER "+" LOWER "*|\\p{N}" CASED_TAIL
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define GPT4O UPPER "*" LOWER "+" SHORT "|" UPPER "+" LOWER "*" SHORT "|\\p{N}{1,3}" CASED_TAIL

/* What a name in "tokenizer.ggml.pre" means. */
static const struct cut {
    const char *name;
    const char *pattern;    // NULL: GPT-2's
    bool digits;            // each digit is a piece of its own before the pattern is matched
    bool whole_first;       // a piece that is a token is taken before any merge
    bool begins;            // a text begins with the first token when the file does not say
} cuts[] = {
    { "llama-bpe", LLAMA3, false, true, true },
    { "llama3", LLAMA3, false, true, true },
    { "llama-v3", LLAMA3, false, true, true },
    { "falcon3", LLAMA3, false, true, false },
    { "pixtral", LLAMA3, false, true, false },
    { "dbrx", LLAMA3, false, false, false },
    { "smaug-bpe", LLAMA3, false, false, false },
    { "qwen2", QWEN2, false, false, false },
    { "deepseek-r1-qwen", QWEN2, false, false, false },
    { "megrez", QWEN2, false, false, false },
    { "tekken", TEKKEN, false, true, true },
    { "gpt-4o", GPT4O, false, false, false },
    { "smollm", NULL, true, false, false },
    { "starcoder", NULL, true, false, false },
    { "refact", NULL, true, false, false },
    { "codeshell", NULL, true, false, false },
    { "exaone", NULL, true, false, false },
    { "gpt-2", NULL, false, false, false },
    { "phi-2", NULL, false, false, false },
    { "olmo", NULL, false, false, false },
    { "default", NULL, false, false, false },
};
enum token_type {
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
};
#define MARK "\xE2\x96\x81"    // U+2581, SentencePiece's space
#define TO_MARK "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}"
#define FROM_MARK                                                                                                                          \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"" MARK                                    \
    "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}"
#define METASPACE(when) "{\"type\": \"Metaspace\", \"replacement\": \"" MARK "\", \"prepend_scheme\": \"" when "\", \"split\": false}"
#define STRIP ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}"
#define PREPEND "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" MARK "\"}, " TO_MARK "]}"
/* What a SentencePiece tokenizer does to spaces, as parts of a tokenizer.json. */
static const struct spaces {
    const char *arch;    // NULL: all that are not named
    const char *normalizer, *pre_tokenizer, *decoder;
    const char *pre_tokenizer_bare, *decoder_bare;    // where tokenizer.ggml.add_space_prefix is false
    bool respelt;                                     // tokens of spaces are spelled with spaces, and merges are in the order of the tokens
} spaces[] = {
    { NULL, "null", METASPACE("first"), FROM_MARK STRIP "]}", METASPACE("never"), FROM_MARK "]}", false },
    { "phi3", PREPEND, "null", FROM_MARK STRIP "]}", "null", FROM_MARK STRIP "]}", false },
    { "gemma2", TO_MARK, "null", FROM_MARK "]}", "null", FROM_MARK "]}", true },
    { "gemma3", TO_MARK, "null", FROM_MARK "]}", "null", FROM_MARK "]}", true },
};
/* The vocabulary of a file; lists are owned. */
struct words {
    const struct gguf *g;
    const struct cut *cut;
    struct gguf_text *token, *merge;
    int32_t *type;    // (n); NULL until specials_mark: the file has none
    int64_t n, n_merge;
    const struct spaces *spaces;    // of a SentencePiece tokenizer; NULL: it is byte-level
    struct gguf_merges merges;      // of one, in place of merge
    struct buf respelt;             // what tokens of spaces become
};

/* How many spaces a token is that is nothing else; 0: it is something else. */
static size_t spaces_len(struct gguf_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if (t.at[i] != ' ')
            return 0;
    return t.len;
}

static void words_release(struct words *w)
{
    gguf_merges_release(&w->merges);
    buf_release(&w->respelt);
    free(w->token);
    free(w->merge);
    free(w->type);
}

static bool cut_find(const struct gguf *g, const struct cut **out, struct error *err)
{
    struct gguf_text name = { "default", 7 };
    if (!gguf_has(g, "tokenizer.ggml.pre"))
        log_warn("'%s' does not say how its text is cut ('tokenizer.ggml.pre'): GPT-2's pattern is taken", gguf_path(g));
    else if (!gguf_text(g, "tokenizer.ggml.pre", &name, err))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(cuts); i++)
        if (gguf_text_is(name, cuts[i].name)) {
            *out = &cuts[i];
            return true;
        }
    return error_set(err, ERR_UNSUPPORTED, "'%s': how text is cut, 'tokenizer.ggml.pre', is '%.*s', which is not known", gguf_path(g),
                     (int)MIN(name.len, (size_t)80), name.at);
}

/* Gemma's files spell tokens of spaces with spaces, and all others with the mark. */
static bool spaces_respell(struct words *w, struct error *err)
{
    size_t most = 0;
    for (int64_t i = 0; i < w->n; i++)
        most = MAX(most, spaces_len(w->token[i]));
    for (size_t i = 0; i < most; i++)
        buf_str(&w->respelt, MARK);
    if (w->respelt.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for the tokens of '%s'", gguf_path(w->g));
    for (int64_t i = 0; i < w->n; i++)
        if (spaces_len(w->token[i]))
            w->token[i] = (struct gguf_text){ buf_text(&w->respelt), w->token[i].len * strlen(MARK) };
    return true;
}

static bool pieces_read(struct words *w, struct error *err)
{
    struct gguf_text arch;
    float *score = NULL;
    if (!gguf_text(w->g, "general.architecture", &arch, err) || !gguf_texts(w->g, "tokenizer.ggml.tokens", &w->token, &w->n, err))
        return false;
    w->spaces = spaces;
    for (size_t i = 1; i < ARRAY_SIZE(spaces); i++)
        if (gguf_text_is(arch, spaces[i].arch))
            w->spaces = &spaces[i];
    bool ok = w->spaces->respelt ? spaces_respell(w, err) : gguf_floats(w->g, "tokenizer.ggml.scores", w->n, &score, err);
    ok = ok && gguf_merges_make(&w->merges, w->token, score, w->n, err);
    free(score);
    return ok && gguf_ints(w->g, "tokenizer.ggml.token_type", w->n, &w->type, err);
}

static bool words_read(struct words *w, struct error *err)
{
    struct gguf_text model;
    if (!gguf_text(w->g, "tokenizer.ggml.model", &model, err))
        return false;
    if (gguf_text_is(model, "llama"))
        return pieces_read(w, err);
    if (!gguf_text_is(model, "gpt2"))
        return error_set(err, ERR_UNSUPPORTED,
                         "'%s': the tokenizer's kind, 'tokenizer.ggml.model', is '%.*s'; gpt2 and llama, two kinds of BPE, are read",
                         gguf_path(w->g), (int)MIN(model.len, (size_t)80), model.at);
    return cut_find(w->g, &w->cut, err) && gguf_texts(w->g, "tokenizer.ggml.tokens", &w->token, &w->n, err)
           && gguf_texts(w->g, "tokenizer.ggml.merges", &w->merge, &w->n_merge, err)
           && (!gguf_has(w->g, "tokenizer.ggml.token_type") || gguf_ints(w->g, "tokenizer.ggml.token_type", w->n, &w->type, err));
}

/* Tokens that the file names are special whatever their type says. */
static bool specials_mark(struct words *w, struct error *err)
{
    static const char *const keys[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id",
                                        "tokenizer.ggml.padding_token_id" };
    if (!w->type && !(w->type = calloc((size_t)w->n + 1, sizeof *w->type)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the tokens of '%s'", gguf_path(w->g));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        int64_t id;
        if (!gguf_has(w->g, keys[i]))
            continue;
        if (!gguf_int(w->g, keys[i], 0, w->n - 1, &id, err))
            return false;
        w->type[id] = TOKEN_CONTROL;
    }
    return true;
}

static void text_put(struct buf *out, struct gguf_text t)
{
    json_text_print(out, t.at, t.len, JSON_TEXT_UTF8);
}

static void added_put(struct buf *out, const struct words *w)
{
    bool any = false;
    for (int64_t i = 0; i < w->n; i++) {
        if ((w->type[i] != TOKEN_CONTROL && w->type[i] != TOKEN_USER_DEFINED) || w->token[i].len == 0)
            continue;
        buf_fmt(out, "%s\n  {\"id\": %" PRId64 ", \"content\": ", any ? "," : "", i);
        text_put(out, w->token[i]);
        buf_fmt(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %s}",
                w->type[i] == TOKEN_CONTROL ? "true" : "false");
        any = true;
    }
}

static void cut_put(struct buf *out, const struct cut *cut)
{
    buf_str(out, "{\"type\": \"Sequence\", \"pretokenizers\": [");
    if (cut->pattern) {
        buf_str(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        json_text_print(out, cut->pattern, strlen(cut->pattern), JSON_TEXT_UTF8);
        buf_str(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    }
    if (cut->digits)
        buf_str(out, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
    buf_fmt(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": %s}]}",
            cut->pattern ? "false" : "true");
}

/* A special token by the key of its id; *there false: the file names none, and *id stays. */
static bool special_find(const struct words *w, const char *key, bool *there, int64_t *id, struct error *err)
{
    *there = gguf_has(w->g, key);
    return !*there || gguf_int(w->g, key, 0, w->n - 1, id, err);
}

static void special_put(struct buf *out, const struct words *w, int64_t id)
{
    buf_str(out, "{\"SpecialToken\": {\"id\": ");
    text_put(out, w->token[id]);
    buf_str(out, ", \"type_id\": 0}}");
}

/* The tokens around a text: none, unless the file or its kind of cut asks for them. */
static bool around_put(struct buf *out, const struct words *w, struct error *err)
{
    bool begins = w->spaces || w->cut->begins, ends = false, has_bos, has_eos;
    int64_t bos = 0, eos = 0;
    if ((gguf_has(w->g, "tokenizer.ggml.add_bos_token") && !gguf_bool(w->g, "tokenizer.ggml.add_bos_token", &begins, err))
        || (gguf_has(w->g, "tokenizer.ggml.add_eos_token") && !gguf_bool(w->g, "tokenizer.ggml.add_eos_token", &ends, err))
        || !special_find(w, "tokenizer.ggml.bos_token_id", &has_bos, &bos, err)
        || !special_find(w, "tokenizer.ggml.eos_token_id", &has_eos, &eos, err))
        return false;
    begins = begins && has_bos;
    ends = ends && has_eos;
    if (!begins && !ends)
        return buf_str(out, "null") || error_set(err, ERR_NO_MEMORY, "no memory for tokenizer.json");
    buf_str(out, "{\"type\": \"TemplateProcessing\", \"single\": [");
    if (begins)
        special_put(out, w, bos);
    buf_fmt(out, "%s{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}%s", begins ? ", " : "", ends ? ", " : "");
    if (ends)
        special_put(out, w, eos);
    buf_str(out, "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], "
                 "\"special_tokens\": {");
    for (int i = 0; i < 2; i++) {
        int64_t id = i ? eos : bos;
        if (!(i ? ends && !(begins && eos == bos) : begins))
            continue;
        buf_str(out, i && begins ? ", " : "");
        text_put(out, w->token[id]);
        buf_str(out, ": {\"id\": ");
        text_put(out, w->token[id]);
        buf_fmt(out, ", \"ids\": [%" PRId64 "], \"tokens\": [", id);
        text_put(out, w->token[id]);
        buf_str(out, "]}");
    }
    buf_str(out, "}}");
    return true;
}

/* What is done to a text before its tokens are looked for, and to its tokens after; the rest of the model's settings. */
static bool forms_put(struct buf *out, const struct words *w, struct error *err)
{
    const struct spaces *p = w->spaces;
    bool prefix = true;
    if (gguf_has(w->g, "tokenizer.ggml.add_space_prefix") && !gguf_bool(w->g, "tokenizer.ggml.add_space_prefix", &prefix, err))
        return false;
    buf_fmt(out, ",\n \"normalizer\": %s,\n \"pre_tokenizer\": ", p ? p->normalizer : "null");
    if (p)
        buf_str(out, prefix ? p->pre_tokenizer : p->pre_tokenizer_bare);
    else
        cut_put(out, w->cut);
    buf_str(out, ",\n \"post_processor\": ");
    if (!around_put(out, w, err))
        return false;
    buf_fmt(out, ",\n \"decoder\": %s",
            !p       ? "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}"
            : prefix ? p->decoder
                     : p->decoder_bare);
    return buf_fmt(out,
                   ",\n \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
                   "\"end_of_word_suffix\": null, \"fuse_unk\": %s, \"byte_fallback\": %s, \"ignore_merges\": %s",
                   p ? "true" : "false", p ? "true" : "false", !p && w->cut->whole_first ? "true" : "false")
           || error_set(err, ERR_NO_MEMORY, "no memory for tokenizer.json");
}

static bool tokenizer_put(struct buf *out, const struct words *w, struct error *err)
{
    buf_str(out, "{\n \"version\": \"1.0\",\n \"truncation\": null,\n \"padding\": null,\n \"added_tokens\": [");
    added_put(out, w);
    buf_char(out, ']');
    if (!forms_put(out, w, err))
        return false;
    buf_str(out, ",\n  \"vocab\": {");
    for (int64_t i = 0; i < w->n; i++) {
        buf_str(out, i ? ",\n   " : "\n   ");
        text_put(out, w->token[i]);
        buf_fmt(out, ": %" PRId64, i);
    }
    buf_str(out, "},\n  \"merges\": [");
    for (int64_t i = 0; i < w->n_merge; i++) {
        buf_str(out, i ? ",\n   " : "\n   ");
        text_put(out, w->merge[i]);
    }
    for (int64_t i = 0; i < w->merges.n; i++) {
        buf_str(out, i ? ",\n   [" : "\n   [");
        text_put(out, w->token[w->merges.merge[i].left]);
        buf_str(out, ", ");
        text_put(out, w->token[w->merges.merge[i].right]);
        buf_char(out, ']');
    }
    return buf_str(out, "]}\n}\n") || error_set(err, ERR_NO_MEMORY, "no memory for tokenizer.json");
}

static bool settings_put(struct buf *out, const struct words *w, struct error *err)
{
    static const struct {
        const char *key, *name;
    } specials[] = {
        { "tokenizer.ggml.bos_token_id", "bos_token" },
        { "tokenizer.ggml.eos_token_id", "eos_token" },
        { "tokenizer.ggml.unknown_token_id", "unk_token" },
        { "tokenizer.ggml.padding_token_id", "pad_token" },
    };
    buf_str(out, "{\n \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n \"clean_up_tokenization_spaces\": false");
    for (size_t i = 0; i < ARRAY_SIZE(specials); i++) {
        bool there;
        int64_t id = 0;
        if (!special_find(w, specials[i].key, &there, &id, err))
            return false;
        if (!there)
            continue;
        buf_fmt(out, ",\n \"%s\": ", specials[i].name);
        text_put(out, w->token[id]);
    }
    struct gguf_text template;
    if (gguf_has(w->g, "tokenizer.chat_template")) {
        if (!gguf_text(w->g, "tokenizer.chat_template", &template, err))
            return false;
        buf_str(out, ",\n \"chat_template\": ");
        text_put(out, template);
    }
    return buf_str(out, "\n}\n") || error_set(err, ERR_NO_MEMORY, "no memory for tokenizer_config.json");
}

bool gguf_words_make(struct gguf_files *f, const struct gguf *g, struct error *err)
{
    struct words w = { .g = g };
    bool ok = words_read(&w, err) && specials_mark(&w, err) && tokenizer_put(&f->tokenizer, &w, err)
              && settings_put(&f->tokenizer_config, &w, err);
    words_release(&w);
    return ok;
}
