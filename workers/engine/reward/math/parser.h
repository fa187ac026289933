/* parser.h - functions shared by the parts of the parser: parse.c has the operators, atom.c and command.c the operands
 *
 * Recursive descent. Each function begins on p->t and returns the tree of what it took, with p->t after it; NULL after
 * parser_fail, or when a bound on depth or memory was reached. Nodes are in the scratch of the check. */
#pragma once
#include "workers/engine/reward/math/lexer.h"

#define CELLS_MAX 144    // of a matrix

/* atom.c: numbers, names, functions, groups */
struct math_node *atom_parse(struct parser *p);
struct math_node *number_node(struct parser *p);
struct math_node *func_parse(struct parser *p, int fn);    // fn with its power, subscript and argument
/* The text s[0..len) on its own, as list_parse reads it; NULL when some of it is left over. */
struct math_node *sub_parse(struct parser *p, const char *s, size_t len);
/* A symbol called s[0..len): subscripts and primes after it become part of the name. */
struct math_node *symbol_node(struct parser *p, const char *s, size_t len);
/* {...} as an argument, or the next single thing: one digit (else a whole number), one letter, one command. */
struct math_node *argument_parse(struct parser *p, bool one_digit);
/* A group that opens here; open: its character, 'b' a brace without backslash, 'f' floor, 'c' ceiling, '<' an angle. */
struct math_node *bracket_parse(struct parser *p, char open);
bool starts_factor(const struct parser *p);     // does p->t begin a factor, so that nothing between is a product?
bool paren_follows(const struct parser *p);     // a parenthesis follows directly, except for commands that set its size
bool binder_follows(const struct parser *p);    // parentheses that bind a letter: 2k\pi (k \in Z)
bool parser_deeper(struct parser *p);           // one group deeper; false, and failed: too deep

/* command.c: a command with its arguments; an unknown one is a symbol of that name */
struct math_node *math_command_parse(struct parser *p);

/* parse.c: from factors up to lists, and math_parse itself (node.h) */
struct math_node *list_parse(struct parser *p);
struct math_node *set_parse(struct parser *p);
struct math_node *sum_parse(struct parser *p);
struct math_node *product_parse(struct parser *p);
struct math_node *factor_parse(struct parser *p);
