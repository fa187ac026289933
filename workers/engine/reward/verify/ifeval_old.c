/* ifeval_old.c - the 25 functions of if_functions.py, by their names; see ifeval.h */
#include <math.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/reward/verify/ifeval.h"
#include "workers/engine/reward/verify/language.h"

#define RE(c) (c)->h->regexes
#define POOL(c) &(c)->h->pool

/* How many of a list's texts are in s. */
static int64_t n_inside(const struct ifeval_call *c, const char *list, bool any_case)
{
    struct span s = any_case ? text_lower(POOL(c), c->text) : c->text;
    int64_t n = 0;
    size_t i;
    const json_t *text;
    json_array_foreach(json_object_get(c->args, list), i, text)
    {
        struct span what = span_of(json_string_value(text), json_string_length(text));
        n += span_find(s, any_case ? text_lower(POOL(c), what) : what, 0) >= 0;
    }
    return n;
}

static bool keywords(const struct ifeval_call *c)
{
    return n_inside(c, "keyword_list", true) == (int64_t)json_array_size(json_object_get(c->args, "keyword_list"));
}

static bool forbidden_words(const struct ifeval_call *c)
{
    return n_inside(c, "forbidden_words", true) == 0;
}

static bool choice(const struct ifeval_call *c)
{
    return n_inside(c, "options", false) > 0;
}

static bool keyword_frequency(const struct ifeval_call *c)
{
    struct span word = text_lower(POOL(c), ifeval_text(c, "word")), g[RE_GROUPS], s = text_lower(POOL(c), c->text);
    int64_t n = 0;
    for (size_t at = 0; regex_each(RE(c), "\\b\\w+\\b", 0, s, &at, g);)
        n += span_equal(g[0], word);
    return n == ifeval_count(c, "N");
}

static bool letter_frequency(const struct ifeval_call *c)
{
    return span_count(c->text, ifeval_text(c, "letter")) == ifeval_count(c, "N");
}

static bool response_language(const struct ifeval_call *c)
{
    const char *language = language_of(POOL(c), c->text);
    return language && span_equal(span_str(language), ifeval_text(c, "language"));
}

static bool paragraph_count(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), text_strip(c->text), "* * *");
    for (int64_t i = 0; i < parts.n; i++)
        if (text_strip(parts.at[i]).len == 0)
            return false;
    return parts.n == ifeval_count(c, "N");
}

/* "around": within a tenth, at least one, rounded half to even. */
static bool quantifier(const struct ifeval_call *c, int64_t n, int64_t slack)
{
    int64_t wanted = ifeval_count(c, "N");
    struct span q = ifeval_text(c, "quantifier");
    if (span_equal(q, span_str("at least")))
        return n >= wanted;
    if (span_equal(q, span_str("at most")))
        return n <= wanted;
    return llabs(n - wanted) <= slack;
}

static int64_t a_tenth(const struct ifeval_call *c)
{
    return MAX((int64_t)nearbyint((double)ifeval_count(c, "N") * 0.1), 1);
}

static bool word_constraint(const struct ifeval_call *c)
{
    struct span word;
    int64_t n = 0;
    for (size_t at = 0; text_word(c->text, &at, &word);)
        n++;
    return quantifier(c, n, a_tenth(c));
}

static bool sentence_constraint(const struct ifeval_call *c)
{
    return quantifier(c, 1 + regex_count(RE(c), "(?<!\\w\\.\\w.)(?<![A-Z][a-z]\\.)(?<=\\.|\\?|!)\\s", 0, c->text), 1);
}

static bool capital_words(const struct ifeval_call *c)
{
    return quantifier(c, regex_count(RE(c), "\\b[A-Z]+\\b", 0, c->text), a_tenth(c));
}

static bool paragraphs(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), c->text, "\n\n");
    int64_t i = ifeval_count(c, "i");
    return parts.n == ifeval_count(c, "N") && i <= parts.n
           && span_starts(text_strip(parts.at[i > 0 ? i - 1 : parts.n - 1]), ifeval_text(c, "first_word"));
}

static bool postscript(const struct ifeval_call *c)
{
    struct span marker = ifeval_text(c, "postscript_marker");
    int64_t at = span_find(c->text, marker, 0);
    return at >= 0 && text_n_char(text_strip(span_of(c->text.s + at, c->text.len - (size_t)at))) > text_n_char(marker);
}

static bool placeholders(const struct ifeval_call *c)
{
    return regex_count(RE(c), "\\[(.*?)\\]", 0, c->text) >= ifeval_count(c, "N");
}

static bool bullet_points(const struct ifeval_call *c)
{
    struct spans lines = spans_split(POOL(c), c->text, "\n");
    int64_t n = 0;
    for (int64_t i = 0; i < lines.n; i++) {
        struct span line = text_strip(lines.at[i]);
        n += line.len > 0 && (line.s[0] == '*' || line.s[0] == '-');
    }
    return n == ifeval_count(c, "N");
}

static bool title(const struct ifeval_call *c)
{
    return regex_find(RE(c), "<<(.*?)>>", 0, c->text, 0, NULL);
}

static bool highlighted_sections(const struct ifeval_call *c)
{
    return regex_count(RE(c), "\\*(.*?)\\*", 0, c->text) >= ifeval_count(c, "N");
}

static bool sections(const struct ifeval_call *c)
{
    struct span splitter = ifeval_text(c, "section_splitter");
    return span_count(c->text, splitter) + !span_starts(c->text, splitter) == ifeval_count(c, "N");
}

static bool json_format(const struct ifeval_call *c)
{
    json_t *read = json_text_read(c->text.s, c->text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_decref(read);
    return read != NULL;
}

static bool repeat_prompt(const struct ifeval_call *c)
{
    return span_starts(c->text, ifeval_text(c, "original_prompt"));
}

static bool two_responses(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), c->text, "******");
    return parts.n == 2 && !span_equal(text_strip(parts.at[0]), text_strip(parts.at[1]));
}

static bool uppercase(const struct ifeval_call *c)
{
    return span_equal(c->text, text_upper(POOL(c), c->text));
}

static bool lowercase(const struct ifeval_call *c)
{
    return span_equal(c->text, text_lower(POOL(c), c->text));
}

static bool end(const struct ifeval_call *c)
{
    return span_ends(c->text, ifeval_text(c, "end_phrase"));
}

static bool quotation(const struct ifeval_call *c)
{
    return span_starts(c->text, span_str("\"")) && span_ends(c->text, span_str("\""));
}

static bool no_commas(const struct ifeval_call *c)
{
    return !span_has(c->text, ",");
}

// clang-format off
const struct instruction ifeval_functions[] = {
    { "verify_keywords", keywords, { { "keyword_list", 'l' } } },
    { "verify_keyword_frequency", keyword_frequency, { { "word", 's' }, { "N", 'n' } } },
    { "validate_forbidden_words", forbidden_words, { { "forbidden_words", 'l' } } },
    { "verify_letter_frequency", letter_frequency, { { "letter", 's' }, { "N", 'n' } } },
    { "validate_response_language", response_language, { { "language", 's' } } },
    { "verify_paragraph_count", paragraph_count, { { "N", 'n' } } },
    { "validate_word_constraint", word_constraint, { { "N", 'n' }, { "quantifier", 'q' } } },
    { "verify_sentence_constraint", sentence_constraint, { { "N", 'n' }, { "quantifier", 'q' } } },
    { "validate_paragraphs", paragraphs, { { "N", 'n' }, { "first_word", 's' }, { "i", 'n' } } },
    { "verify_postscript", postscript, { { "postscript_marker", 's' } } },
    { "validate_placeholders", placeholders, { { "N", 'n' } } },
    { "verify_bullet_points", bullet_points, { { "N", 'n' } } },
    { "validate_title", title, { { NULL } } },
    { "validate_choice", choice, { { "options", 'l' } } },
    { "validate_highlighted_sections", highlighted_sections, { { "N", 'n' } } },
    { "validate_sections", sections, { { "N", 'n' }, { "section_splitter", 's' } } },
    { "validate_json_format", json_format, { { NULL } } },
    { "validate_repeat_prompt", repeat_prompt, { { "original_prompt", 's' } } },
    { "validate_two_responses", two_responses, { { NULL } } },
    { "validate_uppercase", uppercase, { { NULL } } },
    { "validate_lowercase", lowercase, { { NULL } } },
    { "validate_frequency_capital_words", capital_words, { { "N", 'n' }, { "quantifier", 'q' } } },
    { "validate_end", end, { { "end_phrase", 's' } } },
    { "validate_quotation", quotation, { { NULL } } },
    { "validate_no_commas", no_commas, { { NULL } } },
};
// clang-format on
const size_t ifeval_n_function = ARRAY_SIZE(ifeval_functions);
