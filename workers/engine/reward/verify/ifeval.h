/* ifeval.h - the instructions of IFEval and of its extension in open-instruct: one table, a function each
 *
 * Source: open_instruct/IFEvalG/instructions.py (commit e6c3044; from Google Research's IFEval, arXiv 2311.07911) and
 * if_functions.py. An argument that a row does not give is drawn at random upstream; here the row is refused. Keywords are
 * regular expressions there, so they are here. */
#pragma once
#include <jansson.h>
#include "workers/engine/reward/verify/sentences.h"
#include "workers/engine/reward/verify/verify.h"

#define IFEVAL_ARGS 3
struct ifeval_call {
    struct verify_host *h;
    struct span text;      // the answer, without thinking and answer tags
    const json_t *args;    // an object, or NULL
};
/* What an argument must be. */
enum ifeval_kind {
    ARG_TEXT = 's',          // a text that is not empty
    ARG_FIRST = 'w',         // a text, or a list whose first member is one
    ARG_COUNT = 'n',         // a whole number from 0
    ARG_TEXTS = 'l',         // a list of texts, at least one
    ARG_RELATION = 'r',      // "at least" or "less than"
    ARG_QUANTIFIER = 'q',    // "at least", "around" or "at most"
};
struct instruction {
    const char *id;
    bool (*follows)(const struct ifeval_call *c);
    struct {
        const char *name;
        char kind;    // enum ifeval_kind; 0: no more arguments
    } arg[IFEVAL_ARGS];
};
/* ifeval_rules.c and ifeval_old.c */
extern const struct instruction ifeval_instructions[], ifeval_functions[];
extern const size_t ifeval_n_instruction, ifeval_n_function;

/* Are the arguments there? ERR_DATA names the first that is not. */
MUST_USE bool ifeval_args_check(const struct instruction *i, const json_t *args, struct error *err);
/* The arguments, once checked. */
struct span ifeval_text(const struct ifeval_call *c, const char *name);
int64_t ifeval_count(const struct ifeval_call *c, const char *name);
/* Is n at least the named count, or less than it, as the named relation says? */
bool ifeval_relation(const struct ifeval_call *c, int64_t n, const char *count, const char *relation);
