/* node.h - the expression tree of an answer, and the scratch it lives in
 *
 * Trees keep the shape they were written in; nothing is evaluated while parsing. All nodes of one check come from one
 * block of fixed size and are freed together. Children are borrowed, trees may share them. */
#pragma once
#include <flint/fmpq.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/macros.h"
#include "workers/engine/reward/answer.h"
#include "workers/engine/reward/math/math.h"

enum node_kind {
    K_NUM,      // digits s[0..len) times 10^-scale; base > 0: written with that subscript; op 1: with zeros in front
    K_CONST,    // op: enum math_const
    K_SYM,      // free symbol, name s
    K_TEXT,     // words
    K_ADD,
    K_MUL,    // n children
    K_DIV,    // child[0] / child[1]
    K_POW,    // child[0] ^ child[1]
    K_NEG,
    K_ROOT,    // child[1]-th root of child[0]
    K_LOG,     // of child[0] to the base child[1]
    K_FUNC,    // op: enum math_func, of its children
    K_APP,     // unknown function s of its children
    K_JUXT,    // letter s before a parenthesis: child[0] is the product, child[1] with a function; see readings.c
    K_SUM,
    K_PROD,      // child: body, first, last; index name s; op 1: last is infinity, see calculus.h
    K_OPAQUE,    // integral, limit, ...: op says which; equal only when its children are. scale 1 or 2: an integral that can be computed
    K_DEG,       // child[0] degrees
    K_PCT,       // child[0] percent
    K_PM,        // op +1: plus or minus child[0]; -1: minus or plus
    K_RATIO,     // child[0] : child[1] : ...
    K_UNIT,      // child[0] with unit s
    K_LIST,      // a, b, c as written at top level, in no order; groups: separated by ';'; scale 1: a line each; base: joined
                 // by 'a' and, 'o' or, 'm' both, 0 neither
    K_SET,       // braces
    K_TUPLE,     // round or square brackets, open/close in op: (op & 1) '[' at the start, (op & 2) ']' at the end
    K_REL,       // child[0] rel child[1] rel ... ; relation i between i and i+1 is s[i] (enum math_rel)
    K_UNION,
    K_INTER,
    K_MINUS,
    K_NAMED_SET,    // op: 'R', 'Z', 'N', 'Q', 'C', 'P', '0', 'p' for Z from 1 on, 'w' from 0 on; s: '0' as the words "no SOLUTION", and of which kind, else NULL
    K_BUILDER,      // { child[0] | child[1] }
    K_MATRIX,       // scale rows of n / scale columns
    K_CASES,        // a function by cases: value, condition, value, condition, ...; a condition in words is a K_TEXT
};
#define CASE_OTHERWISE "otherwise"    // the K_TEXT of where no other case applies
enum math_const {
    CONST_PI,
    CONST_E,
    CONST_I,
    CONST_INF,
    CONST_GAMMA,
};
enum math_func {
    FN_SIN,
    FN_COS,
    FN_TAN,
    FN_COT,
    FN_SEC,
    FN_CSC,
    FN_ASIN,
    FN_ACOS,
    FN_ATAN,
    FN_ACOT,
    FN_ASEC,
    FN_ACSC,
    FN_SINH,
    FN_COSH,
    FN_TANH,
    FN_COTH,
    FN_SECH,
    FN_CSCH,
    FN_ASINH,
    FN_ACOSH,
    FN_ATANH,
    FN_EXP,
    FN_LN,
    FN_ABS,
    FN_FLOOR,
    FN_CEIL,
    FN_FACT,
    FN_FACT2,
    FN_BINOM,
    FN_GCD,
    FN_LCM,
    FN_MAX,
    FN_MIN,
    FN_MOD,
    FN_GAMMA,
    FN_RE,
    FN_IM,
    FN_ARG,
    FN_CONJ,
    FN_DET,
    FN_SQRT,
    FN_LOG,
    FN_SIGN,
    FN_NUM,
};
enum math_rel {
    REL_EQ,
    REL_NE,
    REL_LT,
    REL_LE,
    REL_GT,
    REL_GE,
    REL_IN,
    REL_NOTIN,
    REL_APPROX,
    REL_SUBSET,
    REL_CONG,
    REL_MOD,    // between the congruence and its modulus
};
enum node_flag {
    HAS_SYM = 1,
    HAS_DECIMAL = 2,
    HAS_PM = 4,
    HAS_I = 8,
    HAS_MATRIX = 16,
    HAS_SET = 32,
    HAS_OPAQUE = 64,
    HAS_PI = 128,
    HAS_INF = 256,
    HAS_TEXT = 512,
    HAS_TRANS = 1024,    // roots, logarithms, trigonometry, ...: no rational number
    HAS_JUXT = 2048,     // a letter before a parenthesis that is not decided yet
    HAS_CALC = 4096,     // an integral or a sum without end, known to fewer digits than the rest
};
struct math_node {
    uint8_t kind;
    int8_t op;
    uint16_t flags;    // enum node_flag of itself and all below
    uint16_t depth;
    int32_t n;
    struct math_node **child;    // (n)
    const char *s;
    int32_t len;
    int32_t scale;
    int32_t base;
    int64_t small;    // K_NUM: the digits' value when len <= 18
};

#define MATH_MEM_BYTES (1 << 20)    // of all nodes of one check
#define MATH_ANSWER_MAX 16384       // bytes of an answer that is parsed
#define MATH_DEPTH_MAX 160          // nested groups, and
#define MATH_TREE_DEPTH_MAX 600     // levels of a tree
#define MATH_STEPS 400000           // of work for one check; one is about 50 ns
#define MATH_BITS_MAX 100000        // of an exact number
#define MATH_BIND_MAX 8             // nested sums
#define COMMAND_SLOTS 1024
struct math {
    struct math_config config;
    int16_t command[COMMAND_SLOTS];    // hash of command names to rows of the parser's table, -1: free
    int64_t steps;                     // left
    bool out_of_memory;
    size_t used;
    int n_bind;
    struct {
        const char *s;
        int32_t len;
        int64_t value;
    } bind[MATH_BIND_MAX];    // indices of the sums being evaluated
    const char *why;          // why something could not be decided; static text
    struct span doubt;        // words of the answer being parsed that may change its value, in the scratch; empty: none
    char *mem;                // MATH_MEM_BYTES
};

void math_start(struct math *m);                                                // a new check: whole budget, empty block; math.c
void *math_take(struct math *m, size_t size);                                   // NULL: the block is full
void math_give_back(struct math *m, size_t used);                               // all taken since m->used was that, after a try that failed
struct math_node *node_new(struct math *m, enum node_kind kind, int n, ...);    // with n children; NULL when one of them is
struct math_node *node_list(struct math *m, enum node_kind kind, struct math_node **child, int n);    // copies the array
struct math_node *node_int(struct math *m, int64_t v);
struct math_node *node_const(struct math *m, enum math_const which);
struct math_node *node_named(struct math *m, enum node_kind kind, const char *s, size_t len);    // s is borrowed
struct math_node *node_op(struct math_node *a, int op);                                          // a with that op; NULL stays NULL
/* A copy of node a, but of that kind and with other children: (a->n), copied. */
struct math_node *node_like(struct math *m, const struct math_node *a, enum node_kind kind, struct math_node **child);
bool node_is(const struct math_node *a, enum node_kind kind);
/* Does name, a symbol or a function's value, occur in a? */
bool node_occurs(const struct math_node *a, const struct math_node *name);
bool math_spend(struct math *m, int64_t steps);                      // false: the budget is spent
bool int_get(const fmpq_t q, int64_t lo, int64_t hi, int64_t *v);    // q as an integer in [lo, hi]
bool name_same(const struct math_node *a, const struct math_node *b);

void commands_init(struct math *m);    // words.c
/* parse.c: NULL when s is not mathematics. plain: numbers with a decimal comma count. */
struct math_node *math_parse(struct math *m, const char *s, size_t len, bool plain);

/* readings.c: decide what a letter before a parenthesis means in two answers that are compared. Afterwards neither has a
 * K_JUXT. false: no room. */
#define FUNCTION_LETTERS "fghFGHPQRSTW"    // the usual names of functions
bool readings_decide(struct math *m, struct math_node **a, struct math_node **b);

/* eval.c and the files of eval.h */
enum tri {
    TRI_NO,
    TRI_YES,
    TRI_UNKNOWN,
};
/* The exact rational value of a tree without free symbols; false: it has none, or too large a one. */
bool eval_rational(struct math *m, const struct math_node *a, fmpq_t out);
/* Are two scalar trees equal? decimals > 0: the tolerance, see math.h. *rule says what decided. */
enum tri scalar_equal(struct math *m, const struct math_node *a, const struct math_node *b, int decimals, const char **rule);
/* The sign of a tree without free symbols, -2: not known. */
int scalar_sign(struct math *m, const struct math_node *a);
/* Has a tree without free symbols no value at all, as 1/0, infinity - infinity, ln(0)? */
bool scalar_undefined(struct math *m, const struct math_node *a);
int digit_value(char c);    // of a numeral: 0 to 35; 99: it is none
#define CALCULUS_LEFT "an integral, limit or the like is not evaluated"
bool scalar_unevaluated(const struct math_node *a);    // does a hold a limit, an integral or the like that nothing computes?
/* Is one of two numbers the other to the last digit that is written, rounded or cut off, and within a twentieth? */
bool scalar_near(struct math *m, const struct math_node *a, const struct math_node *b);
/* Are two scalar trees the same up to a constant factor? *sign is the factor's, 0 when not known. */
enum tri scalar_proportional(struct math *m, const struct math_node *a, const struct math_node *b, int *sign);

/* relations.c and compare.c; the first three of trees without a K_JUXT */
bool relation_false(struct math *m, struct math_node *a);       // says 3 + 2 = 4, itself or in one of its elements
bool relation_identity(struct math *m, struct math_node *a);    // says a = a
/* The right side of an equation whose left side is an expression and whose right side is a value; NULL: it is not such an
 * equation. */
struct math_node *relation_value(struct math *m, struct math_node *a);
enum tri math_compare(struct math *m, struct math_node *gold, struct math_node *pred, const char **rule);

/* extract.c: where the answer is in a text; gold: in a gt_answer. */
struct extracted {
    struct span s;    // one span, or
    char *joined;     // several boxes joined with commas, in the scratch
    bool plain;       // a number or expression from plain text
    bool found;
    bool prose;    // nothing marks it as the answer: the last formula or number among words
};
struct extracted math_extract(struct math *m, const char *text, size_t len, bool gold);
