/* lexer.h - an answer's text as tokens, one ahead of the parser
 *
 * A struct parser is the state of one parse, on its caller's stack: where the lexer is, the next token, and what the parser has
 * entered, because that changes what characters mean (a comma among digits, a bar in a set, a new line in a matrix). Texts are
 * borrowed for the parse; what must be rewritten is copied into the scratch of the check. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include "workers/engine/reward/math/node.h"
#include "workers/engine/reward/math/words.h"

enum tk {
    T_END,
    T_NUM,
    T_WORD,
    T_CMD,
    T_CHAR,
    T_TEXT,
    T_REL,
    T_BAD,    // not mathematics
};
struct math_token {
    enum tk kind;
    bool space;       // white space stood before it
    bool line;        // a ',' that is a new line
    char join;        // a ',' that is the word "and": 'a', "or": 'o'; else 0
    char c;           // T_CHAR; T_REL: enum math_rel
    const char *s;    // T_WORD, T_CMD (without the backslash), T_TEXT; T_NUM: digits
    int32_t len;
    int32_t scale;     // T_NUM: digits after the point
    int32_t repeat;    // T_NUM: of these, how many repeat
    bool decimal;
    const struct math_command *cmd;    // NULL: unknown command
    const char *end;                   // after it in the text
};
struct parser {
    struct math *m;
    const char *p, *end;
    const char *start;            // of the text
    struct math_token t;          // the next token
    int depth;                    // of groups
    int nest;                     // of signs and operands of products, which are not groups
    char index[MATH_BIND_MAX];    // index names of the enclosing sums and products: an i among them is not the imaginary unit
    int n_index;
    int abs_depth;    // of |...|
    bool no_bar;      // in a set's braces: a bar after an operand is "such that"
    bool plain, in_matrix;
    bool has_lines;     // a doubled backslash ends one, whatever follows
    bool in_func;       // in a function's argument without parentheses: \sin x(1+y) ends before them
    bool comma_seen;    // a comma separated something at the top level
    bool failed;
    struct span unit;        // of the element being parsed: its words, with ^n and /; empty: none so far
    const char *side;        // where the side of a relation that is being parsed begins
    const char *currency;    // the unit that the sign of a currency in the element being parsed means; NULL: none stood there
};

/* Read the token at p->p into p->t. Commands without meaning and white space are skipped. */
void token_next(struct parser *p);
void token_take(struct parser *p);    // continue after p->t
/* The content of the brace group at p (which is at the brace), and its closing brace. */
bool group_find(const char *p, const char *end, const char **from, const char **to);
/* Does a colon or a bar stand there, as before the condition of a set? */
bool condition_follows(const char *p, const char *end);
/* Rewrite s[0..*len) for the lexer: plain characters where there are such spellings, no layout-only environments,
 * separate statements on separate lines. *lines: a doubled backslash ends a line. Returns the text, s itself or in the
 * scratch; NULL: no room. */
const char *text_prepare(struct math *m, const char *s, size_t *len, bool *lines);

static inline struct math_node *parser_fail(struct parser *p)
{
    p->failed = true;
    return NULL;
}

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static inline bool starts(const char *p, const char *end, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(end - p) >= n && memcmp(p, what, n) == 0;
}

static inline const char *space_skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    return p;
}

static inline bool word_is(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

static inline bool is_char(const struct parser *p, char c)
{
    return p->t.kind == T_CHAR && p->t.c == c;
}

static inline bool is_class(const struct parser *p, enum cmd_class class)
{
    return p->t.kind == T_CMD && p->t.cmd && p->t.cmd->class == class;
}

static inline bool char_take(struct parser *p, char c)
{
    if (!is_char(p, c))
        return false;
    token_take(p);
    return true;
}
