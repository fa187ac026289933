/* extract.c - where the answer is in a text
 *
 * In this order, which is Math-Verify's with boxes first: the last box (with those close before it), or "final answer
 * is ... I hope" after it; what follows "final answer" or "answer"; the whole text when it is mathematics and no more;
 * the last formula or number. Each takes one pass over the text, so that megabytes take milliseconds. A chosen answer
 * that is not mathematics is kept as it is: no other number in it is ever taken in its place. */
#include <string.h>
#include "workers/engine/reward/math/lexer.h"
#include "workers/engine/reward/math/node.h"

#define BOXES_MAX 12
#define CLAUSE_MAX 400    // bytes after "final answer is" in which its value ends
#define FINAL_MAX 160     // ... after "final answer"
#define ANSWER_MAX 70     // ... after "answer" in which its value begins
#define WHOLE_MAX 400     // bytes of a text that may be an answer as a whole

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool starts_case(const char *p, const char *end, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(end - p) >= n && strncasecmp(p, what, n) == 0;
}

/* A percent mark after an answer: where it ends, or p itself. */
static const char *percent_skip(const char *p, const char *end)
{
    static const char *const marks[] = { "\\%", "%", "percentage", "percent", "pct" };
    const char *q = space_skip(p, end);
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++)
        if (starts_case(q, end, marks[i]))
            return q + strlen(marks[i]);
    return p;
}

struct box {
    const char *start, *end;    // of the whole \boxed{...}
    struct span in;
};

static bool box_at(const char *p, const char *end, struct box *b)
{
    const char *q = box_mark_end(p, end);
    if (!q)
        return false;
    b->start = p;
    if (q == end || *q != '{') {    // \boxed 5
        b->in = (struct span){ q, (size_t)(end - q) };
        b->end = end;
        return q < end;
    }
    for (int escaped = 1; escaped >= 0; escaped--) {
        int64_t depth = 0;
        for (const char *r = q; r < end; r++) {
            if (escaped && *r == '\\' && r + 1 < end && r[1] != 'b')
                r++;
            else if (*r == '{')
                depth++;
            else if (*r == '}' && --depth == 0) {
                b->in = (struct span){ q + 1, (size_t)(r - q - 1) };
                b->end = r + 1;
                return true;
            }
        }
    }
    b->in = (struct span){ q + 1, (size_t)(end - q - 1) };    // never closes: the rest
    b->end = end;
    return true;
}

static bool gap_joins(const char *from, const char *to, bool same)
{
    if (to - from < 10)
        return true;
    if (same || to - from >= 70)
        return false;
    for (const char *p = from; p < to; p++)
        if (*p == ',' || *p == ';'
            || ((starts_case(p, to, "and") || starts_case(p, to, "or")) && (p == from || !((p[-1] | 32) >= 'a' && (p[-1] | 32) <= 'z'))))
            return true;
    return false;
}

/* Join spans with commas, and a percent mark after them. */
static char *join(struct math *m, const struct span *s, int n, bool percent, size_t *len)
{
    size_t room = 4;
    for (int i = 0; i < n; i++)
        room += s[i].len + 4;
    char *out = room < MATH_ANSWER_MAX ? math_take(m, room) : NULL;
    if (!out)
        return NULL;
    *len = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            memcpy(out + *len, " , ", 3);
            *len += 3;
        }
        memcpy(out + *len, s[i].s, s[i].len);
        *len += s[i].len;
    }
    if (percent && *len > 0 && out[*len - 1] != '%') {
        memcpy(out + *len, "\\%", 2);
        *len += 2;
    }
    return out;
}

static void found_spans(struct math *m, struct extracted *out, const struct span *s, int n, bool percent)
{
    out->found = true;
    if (n == 1 && !percent) {
        out->s = span_trim(s[0]);
        return;
    }
    size_t len;
    char *text = join(m, s, n, percent, &len);
    out->s = text ? (struct span){ text, len } : s[n - 1];
}

static const char *last_box(const char *text, const char *end)
{
    for (const char *p = end; p-- > text;)
        if (*p == '\\' && box_mark_end(p, end))
            return p;
    return NULL;
}

static const char *boxes_find(struct math *m, const char *text, const char *end, struct extracted *out)
{
    struct box box[BOXES_MAX];
    struct span span[BOXES_MAX];
    const char *at = last_box(text, end);
    if (!at || !box_at(at, end, &box[0]))
        return NULL;
    int n = 1;
    while (n < BOXES_MAX && (at = last_box(text, box[n - 1].start))) {
        struct box b;
        if (!box_at(at, end, &b))
            break;
        if (b.end > box[n - 1].start)    // a box around the box
            break;
        bool same = b.in.len == box[n - 1].in.len && memcmp(b.in.s, box[n - 1].in.s, b.in.len) == 0;
        if (!gap_joins(b.end, box[n - 1].start, same))
            break;
        box[n++] = b;
    }
    int k = 0;
    for (int i = n; i-- > 0;) {
        if (k > 0 && span[k - 1].len == box[i].in.len && memcmp(span[k - 1].s, box[i].in.s, box[i].in.len) == 0)
            continue;
        span[k++] = box[i].in;
    }
    const char *behind = box[0].end;
    while (behind < end && (*behind == '$' || *behind == ' '))
        behind++;
    const char *pct = percent_skip(behind, end);
    found_spans(m, out, span, k, pct != behind);
    return box[0].end;
}

/* ---- formulas in a text ---- */

struct formula {
    struct span in;
    const char *start, *end;
};

/* The formula that opens at p ($...$, $$...$$, \(...\), \[...\]); $...$ contains no line end except in a matrix or the
 * like, since an amount in dollars does not open a formula. */
static bool formula_at(const char *text, const char *p, const char *end, struct formula *f)
{
    static const struct {
        const char *open, *close;
        bool lines;
    } kinds[] = {
        { "$$", "$$", true },
        { "\\[", "\\]", true },
        { "\\(", "\\)", true },
        { "$", "$", false },
    };
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (!starts(p, end, kinds[i].open))
            continue;
        if (i == 3 && p > text && (p[-1] == '\\' || is_digit(p[-1])))
            return false;
        const char *q = p + strlen(kinds[i].open);
        f->start = p;
        f->in.s = q;
        int inside = 0;    // depth of \begin ... \end, which may contain line ends
        for (; q < end; q++) {
            if (*q == '\n' && !kinds[i].lines && inside == 0)
                return false;
            inside += starts(q, end, "\\begin{") - (inside > 0 && starts(q, end, "\\end{"));
            if (*q == '\\' && q + 1 < end && !starts(q, end, kinds[i].close)) {
                q++;
                continue;
            }
            if (starts(q, end, kinds[i].close)) {
                f->in.len = (size_t)(q - f->in.s);
                f->end = q + strlen(kinds[i].close);
                return span_trim(f->in).len > 0;
            }
        }
        return false;
    }
    return false;
}

/* The whole text between its only two dollar signs, line ends and all. */
static bool whole_formula(const char *text, const char *end, struct formula *f)
{
    if (end - text < 3 || *text != '$' || end[-1] != '$' || memchr(text + 1, '$', (size_t)(end - text - 2)))
        return false;
    *f = (struct formula){ .in = { text + 1, (size_t)(end - text - 2) }, .start = text, .end = end };
    return span_trim(f->in).len > 0;
}

static const char *joiner_skip(const char *p, const char *end)    // "and", "or", "," between two formulas; NULL: none
{
    bool any = false;
    p = space_skip(p, end);
    if (p < end && *p == ',') {
        any = true;
        p++;
    }
    p = space_skip(p, end);
    if (starts(p, end, "and") || starts(p, end, "or")) {
        any = true;
        p += *p == 'a' ? 3 : 2;
    }
    p = space_skip(p, end);
    return any ? p : NULL;
}

/* The length of a plain number or expression at p, 0: none. The text before p must have been checked already. */
static size_t number_len(const char *p, const char *end)
{
    const char *q = p;
    if (q < end && *q == '-')
        q++;
    const char *digits = q;
    while (q < end && is_digit(*q))
        q++;
    size_t n = (size_t)(q - digits);
    bool grouped = false;
    if (n >= 1 && n <= 3 && *digits != '0')
        while (end - q >= 4 && (*q == ',' || *q == ' ') && is_digit(q[1]) && is_digit(q[2]) && is_digit(q[3])
               && !(end - q > 4 && is_digit(q[4]))) {
            q += 4;
            grouped = true;
        }
    if (end - q >= 2 && (*q == '.' || (*q == ',' && !grouped && n > 0)) && is_digit(q[1])) {
        q++;
        while (q < end && is_digit(*q))
            q++;
    }
    if (q == digits)
        return 0;
    return (size_t)(q - p);
}

/* A plain expression such as 2/3 or (9+1)*2: digits and operators up to something that may end a sentence. */
static size_t expression_len(const char *p, const char *end)
{
    const char *q = p, *last = NULL;
    bool op = false, digit = false;
    while (q < end && (is_digit(*q) || *q == ' ' || (*q && strchr(".+-*/^()", *q)))) {
        if (is_digit(*q)) {
            digit = true;
            last = q + 1;
        } else if (strchr("+-*/^", *q) && digit) {
            op = true;
        } else if (*q == ')') {
            last = q + 1;
        }
        q++;
    }
    if (!op || !last)
        return 0;
    for (const char *r = p; r < last; r++)    // there must be an operator before the last digit
        if (strchr("+*/^", *r) || (*r == '-' && r > p && *p != '-'))
            return last == end || is_space(*last) || strchr(".,:)$*%", *last) ? (size_t)(last - p) : 0;
    return 0;
}

static bool number_may_start(const char *text, const char *p)
{
    const char *q = p;
    while (q > text && (*(q - 1) == '*' || *(q - 1) == '$'))
        q--;
    if (q > text && ((unsigned char)q[-1] & 0x80)) {    // a currency sign
        while (q > text && ((unsigned char)q[-1] & 0xc0) == 0x80)
            q--;
        if (q > text)
            q--;
    }
    if (q > text + 1 && q[-1] == '(' && is_space(q[-2]))    // eleven (11)
        return true;
    return q == text || is_space(q[-1]) || q[-1] == '=';
}

struct candidate {
    struct span s;
    const char *end;
    bool plain, percent;
    struct span joined[6];
    int n_joined;
};

/* A point or interval in plain text, (1, 2): its length; 0: none. */
static size_t tuple_len(const char *text, const char *p, const char *end)
{
    if ((*p != '(' && *p != '[') || (p > text && !is_space(p[-1]) && p[-1] != '*' && p[-1] != '='))
        return 0;
    bool comma = false;
    for (const char *q = p + 1; q < end && q - p < 80; q++) {
        if (*q == ')' || *q == ']')
            return comma ? (size_t)(q + 1 - p) : 0;
        comma |= *q == ',';
        if (!is_digit(*q) && !memchr(" ,.-+*/^", *q, 8))
            return 0;
    }
    return 0;
}

/* The letter of a choice, as in "the answer is (C)", at p; NULL: none. */
static const char *choice_at(const char *p, const char *end)
{
    if (starts_case(p, end, " is"))
        p += 3;
    while (p < end && (is_space(*p) || memchr(":*(", *p, 3)))
        p++;
    bool letter = p < end && *p >= 'A' && *p <= 'J' && !(p + 1 < end && ((p[1] | 32) >= 'a' && (p[1] | 32) <= 'z'));
    const char *q = p + 1;
    return letter && (q >= end || memchr(").,:*\n", *q, 6) || (is_space(*q) && q + 1 >= end)) ? p : NULL;
}

/* The formula or number that ends last between from and to (first: the one that begins first); formulas joined by "and" or a
 * comma count as one. */
static bool candidate_find(const char *text, const char *from, const char *to, bool first, struct candidate *c)
{
    bool found = false;
    struct formula f;
    for (const char *p = from; p < to;) {
        if ((*p == '$' || *p == '\\') && formula_at(text, p, to, &f)) {
            struct candidate new = { .s = span_trim(f.in), .end = f.end };
            const char *q = f.end;
            new.joined[new.n_joined++] = new.s;
            for (const char *r; new.n_joined < 6 && (r = joiner_skip(q, to)) && formula_at(text, r, to, &f);) {
                new.joined[new.n_joined++] = span_trim(f.in);
                q = new.end = f.end;
            }
            new.percent = percent_skip(q, to) != q;
            *c = new;
            found = true;
            p = q;
        } else if ((*p == '(' || *p == '[') && tuple_len(text, p, to) > 0) {
            size_t n = tuple_len(text, p, to);
            *c = (struct candidate){ .s = { p, n }, .end = p + n };
            found = true;
            p += n;
        } else if ((is_digit(*p) || *p == '-' || *p == '.' || *p == '(') && number_may_start(text, p)) {
            size_t n = number_len(p, to), x = expression_len(p, to);
            const char *q = p + MAX(n, x);
            if (q == p) {
                p++;
                continue;
            }
            *c = (struct candidate){ .s = { p, (size_t)(q - p) }, .end = q, .plain = true, .percent = percent_skip(q, to) != q };
            found = true;
            p = q;
            while (p < to && is_digit(*p))
                p++;
        } else {
            p++;
            continue;
        }
        if (first)
            return true;
    }
    return found;
}

static void candidate_take(struct math *m, const struct candidate *c, struct extracted *out)
{
    out->plain = c->plain;
    if (c->n_joined > 1)
        found_spans(m, out, c->joined, c->n_joined, c->percent);
    else
        found_spans(m, out, &c->s, 1, c->percent);
}

/* The last place where word occurs, in any case. */
static const char *word_last(const char *text, const char *end, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = end - n; p >= text && end - text >= (int64_t)n; p--)
        if ((*p | 32) == word[0] && strncasecmp(p, word, n) == 0)
            return p;
    return NULL;
}

/* Several words in a row are a sentence, whatever else may be read into it. */
static bool sentence(const char *text, const char *end)
{
    static const char *const plain_words[] = { "so", "then", "hence", "thus", "we", "is", "the", "therefore", "because" };
    int words = 0;
    for (const char *p = text; p < end;) {
        const char *q = p;
        while (q < end && (*q | 32) >= 'a' && (*q | 32) <= 'z')
            q++;
        size_t n = (size_t)(q - p);
        bool joins = (n == 3 && strncasecmp(p, "and", 3) == 0) || (n == 2 && strncasecmp(p, "or", 2) == 0);
        for (size_t i = 0; i < ARRAY_SIZE(plain_words); i++)
            if (n == strlen(plain_words[i]) && strncasecmp(p, plain_words[i], n) == 0)
                return true;
        words += n >= 2 && !joins && !(p > text && p[-1] == '\\');
        p = q > p ? q : p + 1;
    }
    return words >= 3;
}

/* All formulas of a text that has only white space and commas between them. */
static bool formulas_only(struct math *m, const char *text, const char *end, struct extracted *out)
{
    struct span all[BOXES_MAX];
    struct formula f;
    int n = 0;
    for (const char *p = text; p < end;) {
        if (is_space(*p) || *p == ',') {
            p++;
            continue;
        }
        if (n == BOXES_MAX || !formula_at(text, p, end, &f))
            return false;
        all[n++] = span_trim(f.in);
        p = f.end;
    }
    if (n > 1)
        found_spans(m, out, all, n, false);
    return n > 1;
}

/* Are there words around a formula that are more than its unit: any before it, more than three after it, or a sentence? */
static bool has_prose(const char *text, const char *formula, const char *behind, const char *end)
{
    static const char *const verbs[] = { "is", "are", "was", "if", "when", "where", "for", "has", "not", "the" };
    if (memchr(text, '$', (size_t)(formula - text)) && formula - text > 2)
        return true;
    for (const char *p = text; p < formula; p++)
        if (((*p | 32) >= 'a' && (*p | 32) <= 'z') || is_digit(*p))
            return true;
    int words = 0;
    for (const char *p = behind; p < end;) {
        const char *q = p;
        while (q < end && (*q | 32) >= 'a' && (*q | 32) <= 'z')
            q++;
        words += q > p;
        for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
            if ((size_t)(q - p) == strlen(verbs[i]) && strncasecmp(p, verbs[i], (size_t)(q - p)) == 0)
                return true;
        p = q > p ? q : p + 1;
    }
    return words > 3;
}

/* What an answer is looked for in: a text without blanks at its end. */
struct answer_text {
    struct math *m;
    const char *text, *end;
    bool gold;    // it is the right answer, as a data set has it
};

static bool found_candidate(const struct answer_text *in, const struct candidate *c, struct extracted *out)
{
    candidate_take(in->m, c, out);
    return true;
}

static bool found_choice(const char *letter, struct extracted *out)
{
    out->found = true;
    out->s = (struct span){ letter, 1 };
    return true;
}

/* "the final answer is X. I hope it is correct": as strong as a box. from: after the boxes. */
static bool hoped_answer(const struct answer_text *in, const char *from, struct extracted *out)
{
    struct candidate c;
    const char *final = word_last(from, in->end, "final answer is");
    if (!final)
        return false;
    const char *p = final + strlen("final answer is"), *stop = p + MIN(in->end - p, CLAUSE_MAX);
    const char *hope = memmem(p, (size_t)(stop - p), "I hope", 6);
    return hope && candidate_find(in->text, p, hope, true, &c) && found_candidate(in, &c, out);
}

/* "final answer: the largest $n$ is 34", and "final answer" with what follows soon. */
static bool final_answer(const struct answer_text *in, struct extracted *out)
{
    struct candidate c;
    const char *end = in->end, *final = word_last(in->text, end, "final answer");
    if (!final)
        return false;
    const char *p = final + strlen("final answer"), *stop = p + MIN(end - p, FINAL_MAX);
    for (const char *q = p; q + 4 < stop; q++)
        if (is_space(q[0]) && starts_case(q + 1, stop, "is") && (is_space(q[3]) || q[3] == ':')) {
            const char *r = q + 3;
            while (r < stop && (is_space(*r) || *r == ':'))
                r++;
            if (candidate_find(in->text, r, r + MIN(end - r, CLAUSE_MAX), true, &c) && (c.plain ? c.s.s == r : c.s.s - r <= 4))
                return found_candidate(in, &c, out);
        }
    return candidate_find(in->text, p, stop, true, &c) && found_candidate(in, &c, out);
}

/* "option B", "choice (B)". */
static bool named_choice(const struct answer_text *in, struct extracted *out)
{
    static const char *const choices[] = { "option", "choice" };
    for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
        const char *word = word_last(in->text, in->end, choices[i]), *at = word ? choice_at(word + strlen(choices[i]), in->end) : NULL;
        if (at)
            return found_choice(at, out);
    }
    return false;
}

/* The last "answer", with a choice or a value that begins soon. */
static bool named_answer(const struct answer_text *in, struct extracted *out)
{
    struct candidate c;
    const char *end = in->end, *answer = word_last(in->text, end, "answer");
    if (!answer)
        return false;
    const char *p = answer + strlen("answer"), *stop = p + MIN(end - p, ANSWER_MAX), *open = p, *says = p;
    while (says < end && (is_space(*says) || *says == '*'))
        says++;
    if (in->gold && (says == end || !(memchr(":=$\\", *says, 4) || starts_case(says, end, "is"))))
        return false;    // "the answer depends on 5" names none
    const char *choice = choice_at(p, end);
    if (choice)
        return found_choice(choice, out);
    while (open < stop && *open != '$' && *open != '\\')
        open++;
    if (open < stop)
        stop = end;    // a formula that begins near may end far
    return candidate_find(in->text, p, stop, true, &c) && (c.plain ? c.s.s : c.s.s - 2) < p + ANSWER_MAX && found_candidate(in, &c, out);
}

/* A short text that is an answer and nothing else. */
static bool whole_text(const struct answer_text *in, struct extracted *out)
{
    const char *text = in->text;
    size_t len = (size_t)(in->end - text);
    bool formulas = memchr(text, '$', len) || memmem(text, len, "\\(", 2) || memmem(text, len, "\\[", 2);
    if (len > WHOLE_MAX || formulas)
        return false;
    out->s = (struct span){ text, len };
    out->plain = number_len(text, in->end) == len && !(in->gold && memchr(text, ',', len));    // a gt_answer 3,5 is two numbers
    struct math_node *a = sentence(text, in->end) ? NULL : math_parse(in->m, text, len, out->plain);
    out->found = a && !(a->flags & HAS_TEXT) && a->kind != K_TEXT;
    return out->found;
}

/* A text that is one formula. */
static bool whole_formula_text(const struct answer_text *in, struct extracted *out)
{
    struct formula f;
    out->plain = false;
    if (!whole_formula(in->text, in->end, &f) && !(formula_at(in->text, in->text, in->end, &f) && f.end == in->end))
        return false;
    out->found = true;
    out->s = span_trim(f.in);
    return true;
}

/* What GSM8K's mark stands before; without one, what looks like an answer most. */
static bool last_candidate(const struct answer_text *in, struct extracted *out)
{
    struct candidate c;
    const char *text = in->text, *end = in->end, *mark = word_last(text, end, "####");
    if (mark && candidate_find(text, mark + 4, end, true, &c))
        return found_candidate(in, &c, out);
    if (!candidate_find(text, text, end, false, &c))
        return false;
    candidate_take(in->m, &c, out);
    out->prose = in->gold && has_prose(text, c.n_joined > 0 ? c.joined[0].s : c.s.s, c.end, end);
    return true;
}

struct extracted math_extract(struct math *m, const char *text, size_t len, bool gold)
{
    struct extracted out = { 0 };
    while (len > 0 && is_space(text[len - 1]))
        len--;
    const struct answer_text in = { m, text, text + len, gold };
    const char *behind = boxes_find(m, text, in.end, &out);
    if (hoped_answer(&in, behind ? behind : text, &out) || out.found || final_answer(&in, &out) || named_choice(&in, &out)
        || named_answer(&in, &out) || whole_text(&in, &out) || whole_formula_text(&in, &out)
        || (gold && formulas_only(m, text, in.end, &out)) || last_candidate(&in, &out))
        return out;
    out.s = (struct span){ text, len };
    return out;
}
