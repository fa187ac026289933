#include "workers/engine/reward/verify/sentences.h"
#include <stdlib.h>
#include <string.h>

bool spans_add(struct pool *p, struct spans *list, struct span s)
{
    if (list->n == list->cap) {
        int64_t cap = MAX(list->cap * 2, 16);
        struct span *more = pool_take(p, (size_t)cap * sizeof *more);
        if (!more)
            return false;
        if (list->n > 0)
            memcpy(more, list->at, (size_t)list->n * sizeof *more);
        list->at = more;
        list->cap = cap;
    }
    list->at[list->n++] = s;
    return true;
}

struct spans spans_split(struct pool *p, struct span s, const char *sep)
{
    struct spans list = { NULL };
    struct span part;
    for (size_t at = 0; text_part(s, span_str(sep), &at, &part);)
        if (!spans_add(p, &list, part))
            break;
    return list;
}

/* ---- IFEval's rules ---- */

#define ALPHABETS "([A-Za-z])"
#define STARTERS                                                                                                                           \
    "(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\\s|She\\s|It\\s|They\\s|Their\\s|Our\\s|We\\s|But\\s|However\\s|That\\s|This\\s|Wherever)"
#define SUFFIXES "(Inc|Ltd|Jr|Sr|Co)"
#define ACRONYMS "([A-Z][.][A-Z][.](?:[A-Z][.])?)"

static struct span padded(struct pool *p, const char *before, struct span s, const char *after)
{
    size_t a = strlen(before), b = strlen(after);
    char *out = pool_take(p, a + s.len + b);
    if (!out)
        return span_of("", 0);
    memcpy(out, before, a);
    memcpy(out + a, s.s, s.len);
    memcpy(out + a + s.len, after, b);
    return span_of(out, a + s.len + b);
}

/* Two dots and more: as many protected ones, and the end of a sentence. */
static struct span dots_protect(struct regexes *r, struct pool *p, struct span s)
{
    struct span g[RE_GROUPS];
    struct spans parts = { NULL };
    size_t done = 0, len = 0;
    for (size_t at = 0; regex_each(r, "\\.{2,}", 0, s, &at, g);) {
        spans_add(p, &parts, span_of(s.s + done, (size_t)(g[0].s - s.s) - done));
        for (size_t i = 0; i < g[0].len; i++)
            spans_add(p, &parts, span_str("<prd>"));
        spans_add(p, &parts, span_str("<stop>"));
        done = (size_t)(g[0].s + g[0].len - s.s);
    }
    if (done == 0)
        return s;
    spans_add(p, &parts, span_of(s.s + done, s.len - done));
    for (int64_t i = 0; i < parts.n; i++)
        len += parts.at[i].len;
    char *out = pool_take(p, len);
    len = 0;
    for (int64_t i = 0; out && i < parts.n; len += parts.at[i++].len)
        memcpy(out + len, parts.at[i].s, parts.at[i].len);
    return span_of(out ? out : "", out ? len : 0);
}

struct spans sentences_rule(struct regexes *r, struct pool *p, struct span text)
{
    static const char *const first[][2] = {
        { "(Mr|St|Mrs|Ms|Dr)[.]", "\\1<prd>" },
        { "[.](com|net|org|io|gov|edu|me)", "<prd>\\1" },
        { "([0-9])[.]([0-9])", "\\1<prd>\\2" },
    };
    static const char *const second[][2] = {
        { "\\s" ALPHABETS "[.] ", " \\1<prd> " },
        { ACRONYMS " " STARTERS, "\\1<stop> \\2" },
        { ALPHABETS "[.]" ALPHABETS "[.]" ALPHABETS "[.]", "\\1<prd>\\2<prd>\\3<prd>" },
        { ALPHABETS "[.]" ALPHABETS "[.]", "\\1<prd>\\2<prd>" },
        { " " SUFFIXES "[.] " STARTERS, " \\1<stop> \\2" },
        { " " SUFFIXES "[.]", " \\1<prd>" },
        { " " ALPHABETS "[.]", " \\1<prd>" },
    };
    static const char *const last[][2] = {
        { ".”", "”." },     { ".\"", "\"." },   { "!\"", "\"!" },   { "?\"", "\"?" },
        { ".", ".<stop>" }, { "?", "?<stop>" }, { "!", "!<stop>" }, { "<prd>", "." },
    };
    struct span s = text_replace(p, padded(p, " ", text, "  "), "\n", " ");
    for (size_t i = 0; i < ARRAY_SIZE(first); i++)
        s = regex_replace(r, p, first[i][0], first[i][1], s);
    s = text_replace(p, dots_protect(r, p, s), "Ph.D.", "Ph<prd>D<prd>");
    for (size_t i = 0; i < ARRAY_SIZE(second); i++)
        s = regex_replace(r, p, second[i][0], second[i][1], s);
    for (size_t i = 0; i < ARRAY_SIZE(last); i++)
        s = text_replace(p, s, last[i][0], last[i][1]);
    struct spans list = spans_split(p, s, "<stop>");
    for (int64_t i = 0; i < list.n; i++)
        list.at[i] = text_strip(list.at[i]);
    list.n -= list.n > 0 && list.at[list.n - 1].len == 0;
    return list;
}

/* ---- Punkt ---- */

// clang-format off
static const char *const abbreviations[] = {    // sorted
    ". . ", "a.a", "a.c", "a.d", "a.g", "a.h", "a.m", "a.m.e", "a.s", "a.t", "adm", "ala", "ariz", "aug", "ave", "b.f", "b.v", "bros", "c",
    "c.i.t", "c.o.m.b", "c.v", "calif", "chg", "cie", "co", "col", "colo", "conn", "corp", "cos", "ct", "d", "d.c", "d.h", "d.w", "dec",
    "dr", "e", "e.f", "e.h", "e.l", "e.m", "f", "f.g", "f.j", "feb", "fla", "fri", "ft", "g", "g.d", "g.f", "g.k", "ga", "gen", "h", "h.c",
    "h.f", "h.m", "i.m.s", "ill", "inc", "j.b", "j.c", "j.j", "j.k", "j.p", "j.r", "jan", "jr", "k", "kan", "ky", "l", "l.a", "l.f", "l.p",
    "lt", "ltd", "m", "m.b.a", "m.d.c", "m.j", "maj", "messrs", "mg", "mich", "minn", "mr", "mrs", "ms", "n", "n.c", "n.d", "n.h", "n.j",
    "n.m", "n.v", "n.y", "nev", "nov", "oct", "ok", "okla", "ore", "p", "p.a.m", "p.m", "pa", "ph.d", "prof", "r", "r.a", "r.h", "r.i",
    "r.j", "r.k", "r.t", "rep", "reps", "s", "s.a", "s.a.y", "s.c", "s.g", "s.p.a", "s.s", "sen", "sep", "sept", "sr", "st", "sw", "t",
    "t.j", "tenn", "tues", "u.k", "u.n", "u.s", "u.s.a", "u.s.s.r", "v", "va", "vs", "vt", "w", "w.c", "w.r", "w.va", "w.w", "wash", "wed",
    "wis", "yr",
};
static const char *const starters[] = {    // sorted: words that often begin a sentence
    "according", "although", "among", "both", "but", "despite", "even", "he", "however", "i", "if", "in", "indeed", "instead", "it",
    "many", "meanwhile", "moreover", "most", "nevertheless", "nonetheless", "nor", "sales", "separately", "similarly", "since", "so",
    "some", "the", "there", "these", "they", "this", "though", "thus", "under", "when", "while", "yet",
};
static const char *const lower_seen[] = {    // sorted: frequent words that are also written in lower case
    "a", "after", "all", "also", "an", "and", "another", "any", "as", "at", "be", "because", "been", "before", "by", "can", "could", "did",
    "do", "during", "each", "every", "few", "first", "for", "from", "had", "has", "have", "his", "how", "is", "its", "just", "let", "may",
    "might", "more", "must", "my", "next", "no", "not", "now", "of", "on", "once", "one", "only", "or", "other", "our", "people", "she",
    "should", "that", "their", "then", "those", "to", "two", "until", "was", "we", "what", "where", "who", "why", "will", "with", "would",
    "you",
};
static const struct { const char *word, *next; } collocations[] = {    // a number or an initial, and what belongs to it
    { "b", "edelman" }, { "b", "levine" }, { "b", "smith" }, { "b", "stewart" }, { "b", "wigton" }, { "i", "magnin" }, { "i", "toussie" },
    { "j", "aron" }, { "j", "fialka" }, { "j", "walter" }, { "o", "ludcke" }, { "##number##", "who" }, { "##number##", "credit" },
    { "##number##", "letters" }, { "##number##", "review" }, { "##number##", "business" }, { "##number##", "international" },
    { "##number##", "abreast" }, { "##number##", "aes" }, { "##number##", "cbot" }, { "##number##", "colgate" }, { "##number##", "commodities" },
    { "##number##", "cooper" }, { "##number##", "corrections" }, { "##number##", "dividend" }, { "##number##", "financing" },
    { "##number##", "genentech" }, { "##number##", "henley" }, { "##number##", "insider" }, { "##number##", "leisure" },
    { "##number##", "notable" }, { "##number##", "pay-fone" }, { "##number##", "pegasus" }, { "##number##", "pepper" },
    { "##number##", "rj" }, { "##number##", "wedgestone" }, { "##number##", "zimmer" },
};
// clang-format on

static int word_order(const void *key, const void *row)
{
    return strcmp(key, *(const char *const *)row);
}

#define listed(p, s, list) (bsearch(pool_str(p, s), list, ARRAY_SIZE(list), sizeof *(list), word_order) != NULL)

#define NON_WORD "(?:[)\";}\\]*:@'({\\[‘’“”«»?!])"
#define MULTI_CHAR "(?:-{2,}|\\.{2,}|(?:\\.\\s){2,}\\.)"
#define WORD                                                                                                                               \
    "(" MULTI_CHAR "|(?=[^(\"`{\\[:;&#*@)}\\]\\-,])\\S+?(?=\\s|$|" NON_WORD "|" MULTI_CHAR "|,(?=$|\\s|" NON_WORD "|" MULTI_CHAR "))|\\S)"
#define CONTEXT "[.?!](?=(" NON_WORD "|\\s+(\\S+)))"

struct token {
    struct span text, type;    // type: lower case, numbers as ##number##
    bool period, sentence_break, abbreviation, ellipsis, initial, number;
    bool upper, lower;    // the first letter
};

static struct span type_no_period(const struct token *t)
{
    return t->type.len > 1 && t->type.s[t->type.len - 1] == '.' ? span_of(t->type.s, t->type.len - 1) : t->type;
}

/* Punkt's first pass: what a token is by itself. */
static struct token token_make(struct regexes *r, struct pool *p, struct span text)
{
    struct token t = { .text = text };
    size_t one = 0;
    text_next(text, &one);
    t.type = text_lower(p, text);
    if (regex_find(r, "^-?[.,]?\\d[\\d,.-]*\\.?$", 0, t.type, 0, NULL))
        t.type = span_str("##number##"), t.number = true;
    t.upper = text_is_upper(span_of(text.s, one));
    t.lower = text_is_lower(span_of(text.s, one));
    t.period = text.s[text.len - 1] == '.';
    t.initial = regex_find(r, "^[^\\W\\d]\\.$", 0, text, 0, NULL);
    if (span_equal(text, span_str(".")) || span_equal(text, span_str("?")) || span_equal(text, span_str("!"))) {
        t.sentence_break = true;
    } else if (regex_find(r, "^\\.\\.+$", 0, text, 0, NULL)) {
        t.ellipsis = true;
    } else if (t.period && !span_ends(text, span_str(".."))) {
        struct span word = text_lower(p, span_of(text.s, text.len - 1));
        t.abbreviation = listed(p, word, abbreviations) || listed(p, text_after_last(word, "-"), abbreviations);
        t.sentence_break = !t.abbreviation;
    }
    return t;
}

/* Is a word that begins like this known not to begin a sentence? Upstream looks at how its model has seen the word. */
static bool continues(const struct token *t)
{
    return t->lower || (t->text.len == 1 && strchr(";:,.!?", t->text.s[0]));
}

/* Punkt's second pass: abbreviations, initials and numbers, by what comes next. */
static void token_revise(struct pool *p, struct token *a, const struct token *b)
{
    struct span type = type_no_period(a), next = b->sentence_break ? type_no_period(b) : b->type;
    if (!a->period)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(collocations); i++)
        if (span_equal(type, span_str(collocations[i].word)) && span_equal(next, span_str(collocations[i].next))) {
            a->sentence_break = false;
            return;
        }
    if ((a->abbreviation || a->ellipsis) && !a->initial && b->upper && listed(p, next, starters)) {
        a->sentence_break = true;
        return;
    }
    if (!a->initial && !a->number)
        return;
    if (continues(b) || (a->initial && b->upper && !listed(p, next, starters) && !listed(p, next, lower_seen)))
        a->sentence_break = false;
}

/* Does a sentence end inside these words, and not only with the last? */
static bool has_break(struct regexes *r, struct pool *p, struct span text)
{
    struct span g[RE_GROUPS];
    struct token last = { .period = false };
    bool any = false;
    for (size_t at = 0; regex_each(r, WORD, 0, text, &at, g);) {
        struct token t = token_make(r, p, g[0]);
        if (any) {
            token_revise(p, &last, &t);
            if (last.sentence_break)
                return true;
        }
        last = t;
        any = true;
    }
    return false;
}

struct place {
    size_t from, mark, end, next;    // the word before the mark, the mark, its end, the next token or end
    struct span after;
};

/* A sentence ends after pl: cut there, and let closing quotes and brackets belong to it. */
static void sentence_cut(struct regexes *r, struct pool *p, struct span text, size_t *from, size_t end, size_t next, struct spans *list)
{
    struct span g[RE_GROUPS], rest = span_of(text.s + next, text.len - next);
    if (regex_find(r, "\\A[\"')\\]}‘’“”«»]+?(?:\\s+|(?=--)|$)", RE_LINES, rest, 0, g)) {
        spans_add(p, list, span_of(text.s + *from, next + text_strip(g[0]).len - *from));
        *from = next + g[0].len;
    } else {
        if (end > *from)
            spans_add(p, list, span_of(text.s + *from, end - *from));
        *from = next;
    }
}

struct spans sentences_punkt(struct regexes *r, struct pool *p, struct span text)
{
    struct spans list = { NULL };
    struct span g[RE_GROUPS];
    struct place last = { 0 };
    bool any = false;
    size_t from = 0;
    text = span_of(text.s, (size_t)(text_strip(text).s + text_strip(text).len - text.s));    // without white space at the end
    for (size_t at = 0;;) {
        bool found = regex_each(r, CONTEXT, 0, text, &at, g);
        size_t mark = found ? (size_t)(g[0].s - text.s) : text.len, word = any ? last.from : 0;
        if (found) {    // the word before the mark begins after the last white space since the mark before
            size_t start = any ? last.mark : 0;
            for (size_t i = mark; i > start + 1; i--)
                if (strchr(" \t\n\r\v\f", text.s[i - 1]) && text.s[i - 1]) {
                    word = i;
                    break;
                }
        }
        if (any && (!found || last.mark <= word)) {
            size_t end = (size_t)(last.after.s + last.after.len - text.s);
            if (has_break(r, p, span_of(text.s + last.from, end - last.from)))
                sentence_cut(r, p, text, &from, last.end, last.next, &list);
        }
        if (!found)
            break;
        last = (struct place){ word, mark, mark + g[0].len, g[2].s ? (size_t)(g[2].s - text.s) : mark + g[0].len, g[1] };
        any = true;
    }
    if (text.len > from)
        spans_add(p, &list, span_of(text.s + from, text.len - from));
    return list;
}

/* ---- words ---- */

struct spans words_nltk(struct regexes *r, struct pool *p, struct span text)
{
    static const char *const open[][2] = {
        { "([«“‘„]|[`]+)", " \\1 " },
        { "^\"", "``" },
        { "(``)", " \\1 " },
        { "([ (\\[{<])(\"|'{2})", "\\1 `` " },
        { "(?i)(?<!\\w)(')(?!(?:re|ve|ll|m|t|s|d|n)\\b)(?=\\w)", "\\1 " },
        { "([^.])(\\.)([\\])}>\"'»”’ ]*+)\\s*$", "\\1 \\2 \\3 " },
        { "([:,])([^\\d])", " \\1 \\2" },
        { "([:,])$", " \\1 " },
        { "(\\.{2,})", " \\1 " },
        { "([;@#$%&])", " \\1 " },
        { "([\\x{2012}-\\x{2015}])", " \\1 " },
        { "([^.])(\\.)([\\])}>\"']*)\\s*$", "\\1 \\2\\3 " },
        { "([?!])", " \\1 " },
        { "([^'])' ", "\\1 ' " },
        { "([*])", " \\1 " },
        { "([\\]\\[(){}<>])", " \\1 " },
        { "--", " -- " },
    };
    static const char *const close[][2] = {
        { "([»”’])", " \\1 " },
        { "''", " '' " },
        { "\"", " '' " },
        { "\\s+", " " },
        { "([^' ])('[sS]|'[mM]|'[dD]|') ", "\\1 \\2 " },
        { "([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "\\1 \\2 " },
        { "(?i)\\b(can)(not)\\b", " \\1 \\2 " },
        { "(?i)\\b(d)('ye)\\b", " \\1 \\2 " },
        { "(?i)\\b(gim)(me)\\b", " \\1 \\2 " },
        { "(?i)\\b(gon)(na)\\b", " \\1 \\2 " },
        { "(?i)\\b(got)(ta)\\b", " \\1 \\2 " },
        { "(?i)\\b(lem)(me)\\b", " \\1 \\2 " },
        { "(?i)\\b(more)('n)\\b", " \\1 \\2 " },
        { "(?i)\\b(wan)(na)(?=\\s)", " \\1 \\2 " },
        { "(?i) ('t)(is)\\b", " \\1 \\2 " },
        { "(?i) ('t)(was)\\b", " \\1 \\2 " },
    };
    struct spans sentences = sentences_punkt(r, p, text), words = { NULL };
    struct span word;
    for (int64_t k = 0; k < sentences.n; k++) {
        struct span s = sentences.at[k];
        for (size_t i = 0; i < ARRAY_SIZE(open); i++)
            s = regex_replace(r, p, open[i][0], open[i][1], s);
        s = padded(p, " ", s, " ");
        for (size_t i = 0; i < ARRAY_SIZE(close); i++)
            s = regex_replace(r, p, close[i][0], close[i][1], s);
        for (size_t at = 0; text_word(s, &at, &word);)
            spans_add(p, &words, word);
    }
    return words;
}
