/* ifeval_rules.c - each instruction's rule; see ifeval.h */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/reward/verify/ifeval.h"
#include "workers/engine/reward/verify/language.h"

#define RE(c) (c)->h->regexes
#define POOL(c) &(c)->h->pool

static const char *text_arg(const struct ifeval_call *c, const char *name)
{
    return pool_str(POOL(c), text_strip(ifeval_text(c, name)));
}

static struct span low(const struct ifeval_call *c, struct span s)
{
    return text_lower(POOL(c), s);
}

static bool same_text(const struct ifeval_call *c, struct span a, struct span b)
{
    return span_equal(low(c, text_strip(a)), low(c, text_strip(b)));
}

/* A pattern made of three pieces. */
static const char *joined(const struct ifeval_call *c, const char *a, const char *b, const char *d)
{
    size_t n = strlen(a) + strlen(b) + strlen(d);
    char *out = pool_take(POOL(c), n + 1);
    return out ? strcat(strcat(strcpy(out, a), b), d) : "";
}

/* ---- keywords ---- */

static bool existence(const struct ifeval_call *c)
{
    size_t i;
    const json_t *keyword;
    json_array_foreach(json_object_get(c->args, "keywords"), i, keyword)
    {
        if (!regex_find(RE(c), json_string_value(keyword), RE_NOCASE, c->text, 0, NULL))
            return false;
    }
    return true;
}

static int64_t keyword_count(const struct ifeval_call *c, const char *name)
{
    return regex_count(RE(c), text_arg(c, name), RE_NOCASE, c->text);
}

static bool frequency(const struct ifeval_call *c)
{
    return ifeval_relation(c, keyword_count(c, "keyword"), "frequency", "relation");
}

static bool word_once(const struct ifeval_call *c)
{
    return keyword_count(c, "keyword") == 1;
}

static bool count_increment(const struct ifeval_call *c)
{
    return keyword_count(c, "keyword1") == 1 && keyword_count(c, "keyword2") == 2;
}

static bool forbidden(const struct ifeval_call *c)
{
    size_t i;
    const json_t *word;
    json_array_foreach(json_object_get(c->args, "forbidden_words"), i, word)
    {
        if (regex_find(RE(c), joined(c, "\\b", json_string_value(word), "\\b"), RE_NOCASE, c->text, 0, NULL))
            return false;
    }
    return true;
}

/* Upstream draws another letter where the argument is not one from a to z; here what is given is counted. */
static bool letter_frequency(const struct ifeval_call *c)
{
    return ifeval_relation(c, span_count(low(c, c->text), low(c, ifeval_text(c, "letter"))), "let_frequency", "let_relation");
}

static bool no_consecutive(const struct ifeval_call *c)
{
    struct span word, text = low(c, c->text);
    int32_t before = -1;
    for (size_t at = 0; text_word(text, &at, &word);) {
        size_t one = 0;
        int32_t letter = text_next(word, &one);
        if (before >= 0 && letter - before == 1)
            return false;
        before = letter;
    }
    return true;
}

static bool exclude_harder(const struct ifeval_call *c)
{
    return !span_has(c->text, joined(c, " ", text_arg(c, "keyword"), " "));
}

/* Compares characters from both ends. */
static bool is_palindrome(struct span word)
{
    while (word.len > 0) {
        size_t first = 0, last = word.len - 1;
        text_next(word, &first);
        while (last > 0 && ((unsigned char)word.s[last] & 0xC0) == 0x80)
            last--;
        if (!span_equal(span_of(word.s, first), span_of(word.s + last, word.len - last)))
            return false;
        word = last >= first ? span_of(word.s + first, last - first) : span_of(word.s, 0);
    }
    return true;
}

static bool palindrome(const struct ifeval_call *c)
{
    struct span word;
    for (size_t at = 0; text_word(c->text, &at, &word);)
        if (is_palindrome(word))
            return true;
    return false;
}

static bool keyword_position(const struct ifeval_call *c)
{
    struct spans sentences = sentences_rule(RE(c), POOL(c), c->text);
    int64_t n = ifeval_count(c, "n"), m = ifeval_count(c, "m");
    if (n < 1 || m < 1 || sentences.n < n)
        return false;
    struct spans words = words_nltk(RE(c), POOL(c), sentences.at[n - 1]);
    return words.n >= m && span_equal(words.at[m - 1], span_str(text_arg(c, "keyword")));
}

static bool start_end(const struct ifeval_call *c)
{
    struct spans words = words_nltk(RE(c), POOL(c), c->text);
    return words.n >= 2 && span_equal(low(c, words.at[0]), low(c, words.at[words.n - 1]));
}

/* ---- language and letters ---- */

/* A text without letters counts as in any language, as upstream. */
static bool is_language(const struct ifeval_call *c, const char *wanted)
{
    const char *language = language_of(POOL(c), c->text);
    return !language || strcmp(language, wanted) == 0;
}

static bool response_language(const struct ifeval_call *c)
{
    return is_language(c, text_arg(c, "language"));
}

static bool english_capital(const struct ifeval_call *c)
{
    return text_is_upper(c->text) && is_language(c, "en");
}

static bool english_lowercase(const struct ifeval_call *c)
{
    return text_is_lower(c->text) && is_language(c, "en");
}

static bool capital_words(const struct ifeval_call *c)
{
    struct spans words = words_nltk(RE(c), POOL(c), c->text);
    int64_t n = 0;
    for (int64_t i = 0; i < words.n; i++)
        n += text_is_upper(words.at[i]);
    return ifeval_relation(c, n, "capital_frequency", "capital_relation");
}

static bool lowercase_counting(const struct ifeval_call *c)
{
    return regex_count(RE(c), "\\b[a-z]+\\b", 0, c->text) <= ifeval_count(c, "N");
}

static bool letter_counting(const struct ifeval_call *c)
{
    return ifeval_relation(c, regex_count(RE(c), "[a-zA-Z]", 0, c->text), "N", "relation");
}

static bool no_comma(const struct ifeval_call *c)
{
    return !span_has(c->text, ",");
}

static bool no_dot(const struct ifeval_call *c)
{
    return !span_has(c->text, ".");
}

static bool no_exclamation(const struct ifeval_call *c)
{
    return !span_has(c->text, "!");
}

/* ---- lengths ---- */

static bool number_sentences(const struct ifeval_call *c)
{
    return ifeval_relation(c, sentences_punkt(RE(c), POOL(c), c->text).n, "num_sentences", "relation");
}

static bool number_words(const struct ifeval_call *c)
{
    return ifeval_relation(c, regex_count(RE(c), "\\w+", 0, c->text), "num_words", "relation");
}

/* Parts between dividers; blank ones at the ends do not count, one elsewhere makes it -1. */
static int64_t parts_count(const struct ifeval_call *c, const char *divider)
{
    struct spans parts = { NULL };
    struct span part;
    for (size_t at = 0; regex_part(RE(c), divider, c->text, &at, &part);)
        spans_add(POOL(c), &parts, part);
    int64_t n = parts.n;
    for (int64_t i = 0; i < parts.n; i++)
        if (text_strip(parts.at[i]).len == 0) {
            if (i != 0 && i != parts.n - 1)
                return -1;
            n--;
        }
    return n;
}

#define STARS "\\s?\\*\\*\\*\\s?"
static bool number_paragraphs(const struct ifeval_call *c)
{
    return parts_count(c, STARS) == ifeval_count(c, "num_paragraphs");
}

static bool two_paragraphs(const struct ifeval_call *c)
{
    return parts_count(c, STARS) == 2;
}

static bool two_paragraphs_by_lines(const struct ifeval_call *c)
{
    return parts_count(c, "\\n\\n") == 2;
}

static bool paragraph_first_word(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), c->text, "\n\n");
    struct span paragraph = { 0 }, word;
    int64_t n = 0, nth = ifeval_count(c, "nth_paragraph");
    for (int64_t i = 0; i < parts.n; i++) {    // a blank one is not counted, and no other takes its number
        struct span one = text_strip(parts.at[i]);
        n += one.len > 0;
        if (one.len > 0 && n == nth)
            paragraph = one;
    }
    if (nth < 1 || nth > n)
        return false;
    size_t at = 0;
    if (!text_word(paragraph, &at, &word))
        return false;
    while (word.len > 0 && word.s[0] == '\'')
        word = span_of(word.s + 1, word.len - 1);
    while (word.len > 0 && word.s[0] == '"')
        word = span_of(word.s + 1, word.len - 1);
    for (size_t i = 0; i < word.len; i++)
        if (strchr(".,?!'\"", word.s[i]) && word.s[i])
            word.len = i;
    return n == ifeval_count(c, "num_paragraphs") && span_equal(low(c, word), low(c, ifeval_text(c, "first_word")));
}

/* Three paragraphs of n_sent sentences of n_words words each. Upstream's counts are of the paragraphs before blank ones are taken out. */
static bool counting_composition(const struct ifeval_call *c)
{
    struct span part;
    struct spans parts = { NULL };
    int64_t n_sent = ifeval_count(c, "n_sent"), n_words = ifeval_count(c, "n_words");
    for (size_t at = 0; regex_part(RE(c), STARS, c->text, &at, &part);)
        spans_add(POOL(c), &parts, part);
    int64_t n = parts.n;
    for (int64_t i = 0; i < parts.n; i++) {
        if (text_strip(parts.at[i]).len == 0) {
            if (i != 0 && i != parts.n - 1)
                return false;
            n--;
        }
        struct spans sentences = sentences_rule(RE(c), POOL(c), parts.at[i]);
        if (sentences.n != n_sent)
            return false;
        for (int64_t k = 0; k < sentences.n; k++)
            if (words_nltk(RE(c), POOL(c), sentences.at[k]).n != n_words)
                return false;
    }
    return n == 3;
}

static int by_bytes(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    int by = memcmp(x->s, y->s, MIN(x->len, y->len));
    return by ? by : (x->len > y->len) - (x->len < y->len);
}

static bool count_unique(const struct ifeval_call *c)
{
    struct spans words = words_nltk(RE(c), POOL(c), c->text);
    if (words.n > 1)
        qsort(words.at, (size_t)words.n, sizeof *words.at, by_bytes);
    for (int64_t i = 1; i < words.n; i++)
        if (span_equal(words.at[i], words.at[i - 1]))
            return false;
    return true;
}

/* ---- contents and formats ---- */

static bool number_placeholders(const struct ifeval_call *c)
{
    return regex_count(RE(c), "\\[.*?\\]", 0, c->text) >= ifeval_count(c, "num_placeholders");
}

static bool postscript(const struct ifeval_call *c)
{
    const char *marker = text_arg(c, "postscript_marker"), *pattern;
    if (strcmp(marker, "P.P.S") == 0)
        pattern = "\\s*p\\.\\s?p\\.\\s?s.*$";
    else if (strcmp(marker, "P.S.") == 0)
        pattern = "\\s*p\\.\\s?s\\..*$";
    else
        pattern = joined(c, "\\s*", pool_str(POOL(c), low(c, span_str(marker))), ".*$");
    return regex_find(RE(c), pattern, RE_LINES, low(c, c->text), 0, NULL);
}

static bool number_bullets(const struct ifeval_call *c)
{
    return regex_count(RE(c), "^\\s*\\*[^\\*].*$", RE_LINES, c->text) + regex_count(RE(c), "^\\s*-.*$", RE_LINES, c->text)
           == ifeval_count(c, "num_bullets");
}

static bool constrained_response(const struct ifeval_call *c)
{
    return span_has(c->text, "My answer is yes.") || span_has(c->text, "My answer is no.") || span_has(c->text, "My answer is maybe.");
}

static bool number_highlights(const struct ifeval_call *c)
{
    struct span g[RE_GROUPS];
    int64_t n = 0;
    for (size_t at = 0; regex_each(RE(c), "\\*[^\\n\\*]*\\*", 0, c->text, &at, g);)
        n += text_strip(text_strip_of(g[0], "*")).len > 0;
    for (size_t at = 0; regex_each(RE(c), "\\*\\*[^\\n\\*]*\\*\\*", 0, c->text, &at, g);)
        n += text_strip(span_of(g[0].s + 2, g[0].len - 4)).len > 0;
    return n >= ifeval_count(c, "num_highlights");
}

static bool multiple_sections(const struct ifeval_call *c)
{
    return regex_count(RE(c), joined(c, "\\s?", text_arg(c, "section_spliter"), "\\s?\\d+\\s?"), 0, c->text)
           >= ifeval_count(c, "num_sections");
}

static bool json_format(const struct ifeval_call *c)
{
    static const char *const fences[] = { "```json", "```Json", "```JSON", "```" };
    struct span s = text_strip(c->text);
    for (size_t i = 0; i < ARRAY_SIZE(fences); i++)
        if (span_starts(s, span_str(fences[i])))
            s = span_of(s.s + strlen(fences[i]), s.len - strlen(fences[i]));
    if (span_ends(s, span_str("```")))
        s.len -= 3;
    s = text_strip(s);
    json_t *read = json_text_read(s.s, s.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_decref(read);
    return read != NULL;
}

static bool title(const struct ifeval_call *c)
{
    struct span g[RE_GROUPS];
    for (size_t at = 0; regex_each(RE(c), "<<[^\\n]+>>", 0, c->text, &at, g);) {
        struct span s = g[0];
        while (s.len > 0 && s.s[0] == '<')
            s = span_of(s.s + 1, s.len - 1);
        while (s.len > 0 && s.s[s.len - 1] == '>')
            s.len--;
        if (text_strip(s).len > 0)
            return true;
    }
    return false;
}

static bool sentence_hyphens(const struct ifeval_call *c)
{
    struct spans gold = sentences_rule(RE(c), POOL(c), text_replace(POOL(c), c->text, "-", " "));
    struct spans parts = spans_split(POOL(c), c->text, "-");
    for (int64_t i = 0; i < MIN(gold.n, parts.n); i++)
        if (text_strip(parts.at[i]).len != parts.at[i].len || !span_equal(parts.at[i], gold.at[i]))
            return false;
    return true;
}

static bool square_brackets(const struct ifeval_call *c)
{
    struct span word;
    for (size_t at = 0; text_word(c->text, &at, &word);)
        if (word.s[0] != '[' || word.s[word.len - 1] != ']')
            return false;
    return true;
}

static bool bigram_wrapping(const struct ifeval_call *c)
{
    struct span first, second;
    for (size_t at = 0; text_word(c->text, &at, &first) && text_word(c->text, &at, &second);)
        if (!span_starts(first, span_str("<<")) || !span_ends(second, span_str(">>")))
            return false;
    return true;
}

static bool two_responses(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), c->text, "******");
    struct span kept[2];
    int64_t n = 0;
    for (int64_t i = 0; i < parts.n; i++) {
        struct span s = text_strip(parts.at[i]);
        if (s.len == 0 && i != 0 && i != parts.n - 1)
            return false;
        if (s.len > 0 && n++ < 2)
            kept[n - 1] = s;
    }
    return n == 2 && !span_equal(kept[0], kept[1]);
}

static bool repeat_prompt(const struct ifeval_call *c)
{
    return span_starts(low(c, text_strip(c->text)), low(c, text_strip(ifeval_text(c, "prompt_to_repeat"))));
}

static bool end_checker(const struct ifeval_call *c)
{
    return span_ends(low(c, text_strip_of(text_strip(c->text), "\"")), low(c, text_strip(ifeval_text(c, "end_phrase"))));
}

static bool quotation(const struct ifeval_call *c)
{
    struct span s = text_strip(c->text);
    return text_n_char(s) > 1 && s.s[0] == '"' && s.s[s.len - 1] == '"';
}

/* ---- copies ---- */

static bool repeat_phrase(const struct ifeval_call *c)
{
    struct span phrase = text_strip(ifeval_text(c, "phrase")), word, g[RE_GROUPS];
    struct spans ref = { NULL };
    int64_t n = ifeval_count(c, "small_n"), n_found = 0, n_right = 0;
    for (size_t at = 0; text_word(phrase, &at, &word);)
        spans_add(POOL(c), &ref, word);
    if (ref.n == 0)
        return false;
    const char *last = pool_str(POOL(c), ref.at[ref.n - 1]);
    const char *pattern = joined(c, pool_str(POOL(c), ref.at[0]), " .*? ", last);
    if (regex_count(RE(c), pattern, 0, c->text) != n)
        return false;
    for (size_t at = 0; regex_each(RE(c), pattern, 0, c->text, &at, g); n_found++) {
        int64_t i = 0, differ = 0;
        for (size_t k = 0; text_word(g[0], &k, &word); i++)
            differ += i < ref.n && !span_equal(word, ref.at[i]);
        if (i != ref.n || differ > 1)
            return false;
        n_right += differ == 1;
    }
    return n_right == n;
}

static bool copy(const struct ifeval_call *c)
{
    return same_text(c, c->text, ifeval_text(c, "prompt_to_repeat"));
}

static bool copying_multiple(const struct ifeval_call *c)
{
    struct spans parts = spans_split(POOL(c), c->text, "******");
    for (int64_t i = 0; i < parts.n; i++)
        if (!same_text(c, parts.at[i], ifeval_text(c, "prompt_to_repeat")))
            return false;
    return parts.n == ifeval_count(c, "N");
}

static bool copy_span(const struct ifeval_call *c)
{
    return same_text(c, c->text, text_slice(ifeval_text(c, "prompt_to_repeat"), ifeval_count(c, "n_start"), ifeval_count(c, "n_end")));
}

/* ---- first and last words ---- */

static struct span first_word(struct span s)
{
    struct span word = span_of("", 0);
    size_t at = 0;
    return text_word(s, &at, &word) ? word : span_of("", 0);
}

/* Without what is neither a letter, a number, an underscore nor white space. */
static struct span last_word(const struct ifeval_call *c, struct span s)
{
    struct span word = span_of("", 0);
    for (size_t at = 0; text_word(s, &at, &word);) {
    }
    return regex_replace(RE(c), POOL(c), "[^\\w\\s]", "", word);
}

static bool first_word_sent(const struct ifeval_call *c)
{
    struct spans sentences = sentences_rule(RE(c), POOL(c), c->text);
    for (int64_t i = 0; i < sentences.n; i++)
        if (sentences.at[i].len == 0 || !same_text(c, first_word(sentences.at[i]), ifeval_text(c, "first_word")))
            return false;
    return true;
}

static bool first_word_answer(const struct ifeval_call *c)
{
    return same_text(c, first_word(c->text), ifeval_text(c, "first_word"));
}

static bool last_word_sent(const struct ifeval_call *c)
{
    struct spans sentences = sentences_rule(RE(c), POOL(c), c->text);
    for (int64_t i = 0; i < sentences.n; i++)
        if (sentences.at[i].len == 0 || !same_text(c, last_word(c, sentences.at[i]), ifeval_text(c, "last_word")))
            return false;
    return true;
}

static bool last_word_answer(const struct ifeval_call *c)
{
    return same_text(c, last_word(c, c->text), ifeval_text(c, "last_word"));
}

// clang-format off
const struct instruction ifeval_instructions[] = {
    { "keywords:existence", existence, { { "keywords", 'l' } } },
    { "keywords:frequency", frequency, { { "keyword", 's' }, { "frequency", 'n' }, { "relation", 'r' } } },
    { "keywords:forbidden_words", forbidden, { { "forbidden_words", 'l' } } },
    { "keywords:letter_frequency", letter_frequency, { { "letter", 's' }, { "let_frequency", 'n' }, { "let_relation", 'r' } } },
    { "keywords:no_adjacent_consecutive", no_consecutive, { { NULL } } },
    { "keywords:word_once", word_once, { { "keyword", 's' } } },
    { "keywords:word_count_different_numbers", frequency, { { "keyword", 's' }, { "frequency", 'n' }, { "relation", 'r' } } },
    { "keywords:exclude_word_harder", exclude_harder, { { "keyword", 's' } } },
    { "keywords:palindrome", palindrome, { { NULL } } },
    { "keywords:keyword_specific_position", keyword_position, { { "keyword", 'w' }, { "n", 'n' }, { "m", 'n' } } },
    { "keywords:start_end", start_end, { { NULL } } },
    { "language:response_language", response_language, { { "language", 's' } } },
    { "length_constraints:number_sentences", number_sentences, { { "num_sentences", 'n' }, { "relation", 'r' } } },
    { "length_constraints:number_paragraphs", number_paragraphs, { { "num_paragraphs", 'n' } } },
    { "length_constraints:number_words", number_words, { { "num_words", 'n' }, { "relation", 'r' } } },
    { "length_constraints:nth_paragraph_first_word", paragraph_first_word, { { "num_paragraphs", 'n' }, { "nth_paragraph", 'n' }, { "first_word", 's' } } },
    { "detectable_content:number_placeholders", number_placeholders, { { "num_placeholders", 'n' } } },
    { "detectable_content:postscript", postscript, { { "postscript_marker", 's' } } },
    { "detectable_format:number_bullet_lists", number_bullets, { { "num_bullets", 'n' } } },
    { "detectable_format:constrained_response", constrained_response, { { NULL } } },
    { "detectable_format:number_highlighted_sections", number_highlights, { { "num_highlights", 'n' } } },
    { "detectable_format:multiple_sections", multiple_sections, { { "section_spliter", 's' }, { "num_sections", 'n' } } },
    { "detectable_format:json_format", json_format, { { NULL } } },
    { "detectable_format:title", title, { { NULL } } },
    { "detectable_format:sentence_hyphens", sentence_hyphens, { { NULL } } },
    { "detectable_format:square_brackets", square_brackets, { { NULL } } },
    { "detectable_format:bigram_wrapping", bigram_wrapping, { { NULL } } },
    { "combination:two_responses", two_responses, { { NULL } } },
    { "combination:repeat_prompt", repeat_prompt, { { "prompt_to_repeat", 's' } } },
    { "startend:end_checker", end_checker, { { "end_phrase", 's' } } },
    { "startend:quotation", quotation, { { NULL } } },
    { "change_case:capital_word_frequency", capital_words, { { "capital_frequency", 'n' }, { "capital_relation", 'r' } } },
    { "change_case:english_capital", english_capital, { { NULL } } },
    { "change_case:english_lowercase", english_lowercase, { { NULL } } },
    { "punctuation:no_comma", no_comma, { { NULL } } },
    { "punctuation:punctuation_dot", no_dot, { { NULL } } },
    { "punctuation:punctuation_exclamation", no_exclamation, { { NULL } } },
    { "copy:repeat_phrase", repeat_phrase, { { "phrase", 's' }, { "small_n", 'n' } } },
    { "copy:copy", copy, { { "prompt_to_repeat", 's' } } },
    { "copy:copying_simple", copy, { { "prompt_to_repeat", 's' } } },
    { "copy:copying_multiple", copying_multiple, { { "prompt_to_repeat", 's' }, { "N", 'n' } } },
    { "new:copy_span_idx", copy_span, { { "prompt_to_repeat", 's' }, { "n_start", 'n' }, { "n_end", 'n' } } },
    { "paragraphs:paragraphs", two_paragraphs, { { NULL } } },
    { "paragraphs:paragraphs2", two_paragraphs_by_lines, { { NULL } } },
    { "first_word:first_word_sent", first_word_sent, { { "first_word", 'w' } } },
    { "first_word:first_word_answer", first_word_answer, { { "first_word", 's' } } },
    { "last_word:last_word_sent", last_word_sent, { { "last_word", 'w' } } },
    { "last_word:last_word_answer", last_word_answer, { { "last_word", 's' } } },
    { "count:lowercase_counting", lowercase_counting, { { "N", 'n' } } },
    { "count:counting_composition", counting_composition, { { "n_sent", 'n' }, { "n_words", 'n' } } },
    { "count:count_unique", count_unique, { { NULL } } },
    { "count:count_increment_word", count_increment, { { "keyword1", 's' }, { "keyword2", 's' } } },
    { "letters:letter_counting", letter_counting, { { "N", 'n' }, { "relation", 'r' } } },
    { "letters:letter_counting2", letter_frequency, { { "letter", 's' }, { "let_frequency", 'n' }, { "let_relation", 'r' } } },
};
// clang-format on
const size_t ifeval_n_instruction = ARRAY_SIZE(ifeval_instructions);
