/* tests.h - the test cases of a code problem, as the datasets write them
 *
 * PRIME's format, also verl's and ColossalChat's: {"inputs": [...], "outputs": [...], "fn_name": optional}, or a string
 * that holds it. Without fn_name an input is what the program reads and an output what it writes (a list: its lines);
 * with it an input holds one JSON value per line (a list: the arguments) and an output one JSON value. A plain value; one
 * thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/sandbox/value.h"

struct test_case {
    char *input;    // input_len bytes, as the program gets it
    size_t input_len;
    char *output;    // output_len bytes, as written in the data
    size_t output_len;
    struct json_value *value;    // call-based: output as a value
};
struct tests {
    char *function;            // NULL: stdin and stdout
    struct test_case *test;    // (n)
    int64_t n;
};
/* Read a row's test_cases. ERR_DATA: there are none, or they do not hold what they must; then t holds nothing. */
MUST_USE bool tests_read(struct tests *t, const json_t *test_cases, struct error *err);
void tests_release(struct tests *t);
/* Are out's len bytes the expected answer of this test? False: no memory. */
MUST_USE bool test_compare(const struct tests *t, int64_t i, const char *out, size_t len, bool *ok, struct error *err);

/* The program in a response: after the last ```python up to the next ```; without that fence the whole response. code
 * is borrowed from text. Returns whether there was a fence. */
bool program_find(const char *text, size_t len, const char **code, size_t *code_len);
