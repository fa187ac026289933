/* words.h - the words of mathematics: commands and functions, characters that mean them, units
 *
 * One constant table each, in words.c; a new command is one row there. Only the table's hash index is made at run time,
 * in the scratch of each thread. Any thread may read them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "workers/engine/reward/math/node.h"

/* How the parser takes a command. */
enum cmd_class {
    C_SPACE,
    C_SYM,
    C_CONST,
    C_FRAC,
    C_BINOM,
    C_SQRT,
    C_FUNC,
    C_OPNAME,
    C_TEXT,
    C_FONT,
    C_BB,
    C_ACCENT,
    C_MARK,
    C_CHAR,
    C_REL,
    C_OPEN,
    C_CLOSE,
    C_BEGIN,
    C_END,
    C_BOX,
    C_SUM,
    C_OPAQUE,
    C_OVER,
    C_CHOOSE,
    C_DEGREE,
    C_DOTS,
    C_EMPTYSET,
    C_PMOD,
    C_PM,
    C_CUP,
    C_CAP,
    C_SETMINUS,
    C_NUMERAL,     // our own, see numerals_write in lexer.c
    C_SKIP_ARG,    // colours, lengths and places: that many groups, and those in square brackets, say nothing
    C_BAD,
};
struct math_command {
    const char *name;    // without the backslash
    uint8_t class;       // enum cmd_class
    int16_t arg;         // of the class: enum math_func, enum math_const, enum math_rel, a character, an operation
};
/* The command called s[0..len), with or without its backslash; NULL: there is none. m: after commands_init. */
const struct math_command *math_command_find(const struct math *m, const char *s, size_t len);
/* The name of the command that the character at p means, and the character's bytes; NULL: none. */
const char *unicode_command(const char *p, const char *end, size_t *len);
/* The plain spelling of the character at p, and the character's bytes; NULL: none. */
const char *unicode_plain(const char *p, const char *end, size_t *len);
/* The unit of money that the sign at p means, and the sign's bytes; NULL: none. */
const char *currency_at(const char *p, const char *end, size_t *len);
bool unit_word(const char *s, size_t len);    // a unit's name as a separate word
/* Are these words after a number nothing but what is measured or counted: units, or one word in the plural? */
bool unit_plain(const char *s, size_t len);
/* A word after a number that changes it: million times, squared to a power. */
struct multiplier {
    const char *word;
    int64_t times;
    int power;    // 0: times counts
};
/* The multiplier that s begins with as a whole word, and its bytes; NULL: none. */
const struct multiplier *multiplier_find(const char *s, size_t len, size_t *bytes);
/* The bytes of a Chinese unit at s, a multiplier before it or alone; 0: none stands there. */
size_t chinese_len(const char *s, const char *end);
/* Do these words say that there is no solution? limit: the word that says of which kind there is none ("real"), or empty. */
bool no_solution(const char *s, size_t len, struct span *limit);
size_t half_words(const char *s, const char *end);    // the bytes of "and a half" at s; 0: it does not stand there
/* What words before an answer do to it. */
enum lead {
    LEAD_EMPTY,
    LEAD_MINUS,
    LEAD_HALF,
    LEAD_TWICE,
    LEAD_UNKNOWN,
};
enum lead lead_of(const char *s, size_t len);
