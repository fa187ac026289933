/* template_lex.h - reading a template: its tokens, and what the two halves of the parser share; only for template*.c
 *
 * A failure jumps out through p->fail (template_parts.h). */
#pragma once
#include "workers/engine/template/template_parts.h"

enum token_kind {
    T_END,
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
};
struct token {
    enum token_kind kind;
    int line;
    struct str text;       // name, string's value, text, operator
    struct value value;    // numbers
};
struct parse {
    struct fail fail;
    const char *src, *end, *at;
    int line;    // at `at`
    bool in_tag, tag_is_var;
    int brackets;    // open within the tag: closing signs do not end it
    char stack[64];
    struct token now, ahead;
    bool has_ahead;
    int depth;
    int loops;        // enclosing for statements
    unsigned uses;    // enum macro_uses, of what has been read of a macro's body
    int macro;        // inside a macro: loops outside do not count
};

/* ---- template_lex.c ---- */
void lex_advance(struct parse *p);                // p->now becomes the next token
const struct token *lex_peek(struct parse *p);    // the token after p->now
bool lex_is_op(const struct parse *p, const char *op);
bool lex_is_name(const struct parse *p, const char *name);
bool lex_skip_op(struct parse *p, const char *op);    // advance over it, if it is there
bool lex_skip_name(struct parse *p, const char *name);
void lex_expect_op(struct parse *p, const char *op);    // advance over it, or fail
struct str lex_expect_name(struct parse *p);
void lex_unexpected(struct parse *p, const char *wanted) __attribute__((noreturn));
void lex_deeper(struct parse *p);    // one level more of p->depth; fails beyond TEMPLATE_DEPTH_MAX

/* ---- template_expr.c ---- */
enum tuple_mode {
    TUPLE_FULL,
    TUPLE_NO_COND,
    TUPLE_TARGET,
};
struct expr *jinja_expr_read(struct parse *p);
/* A tuple, or the single expression when there is no comma. end_name: a name that may follow a comma and ends it, or NULL. */
struct expr *jinja_tuple_read(struct parse *p, enum tuple_mode mode, const char *end_name, bool in_brackets);
/* The filter that p->now names, with its arguments, applied to subject. */
struct expr *jinja_filter_read(struct parse *p, struct expr *subject);
