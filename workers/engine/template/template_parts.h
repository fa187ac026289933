/* template_parts.h - internals of the template interpreter; only for template*.c
 *
 * All memory of a template or a rendering is in its pool and is freed with it. A failure jumps (longjmp) to the place
 * that began the reading or the rendering (fail_set). Nothing else is held in between, so nothing can leak, and the
 * many small operations on values need no error paths. */
#pragma once
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/template/template.h"

#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)    // source; the longest published one has 30 KB
#define TEMPLATE_DEPTH_MAX 100                  // nested expressions, statements and macro calls
#define VALUE_DEPTH_MAX 200                     // lists and dicts inside each other
#define RENDER_STEPS_MAX ((int64_t)20000000)    // expressions and statements evaluated, items looked at
#define RENDER_BYTES_MAX ((size_t)256 << 20)    // memory of values
#define RENDER_OUTPUT_MAX ((size_t)64 << 20)    // text, at every level

/* ---- memory and failure ---- */
struct chunk;
struct jinja_pool {
    struct chunk *chunk;
    size_t used, max;
};
struct fail {
    jmp_buf at;
    struct error *err;
    const char *name;    // of the template
    int line;            // being read or rendered
    struct jinja_pool *pool;
};
void *jinja_pool_take(struct fail *f, size_t bytes);    // zeroed, aligned to 16
void jinja_pool_release(struct jinja_pool *p);
void jinja_fail_set(struct fail *f, enum error_code code, const char *fmt, ...) PRINTF_LIKE(3, 4) __attribute__((noreturn, cold));

/* ---- values ---- */
enum value_kind {
    V_MISSING,    // an argument that was not given; never seen by a template
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,        // as a list, but prints otherwise
    V_VIEW,         // dict_items, dict_keys, dict_values; as a list without indexing
    V_GENERATOR,    // the result of a lazy filter: iterated once, always true, no length
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION,
    V_METHOD,
};
struct str {
    const char *p;    // UTF-8, not NUL-terminated
    size_t len;
};
struct value {
    enum value_kind kind;
    bool markup;    // a V_STR from safe or escape; "+" then escapes what is not
    bool whole;     // a V_STR that is the digits of an integer beyond 64 bits: no quotes around it
    char view;      // V_VIEW: 'i', 'k' or 'v'
    union {
        bool b;
        int64_t i;
        double f;
        struct str s;
        struct list *list;    // V_LIST, V_TUPLE, V_RANGE, V_VIEW, V_GENERATOR
        struct dict *dict;    // V_DICT, V_NAMESPACE
        struct loop *loop;
        struct macro *macro;
        const struct function *function;
        struct bound_method *bound;    // V_METHOD
    };
};
struct list {
    struct value *v;
    int64_t n, cap;
    int64_t at;    // V_GENERATOR: items already given
};
struct dict {
    struct value *key, *value;    // in order of insertion
    int64_t n, cap;
};
struct loop {
    struct list *items;
    int64_t index0;
    int depth;
    struct value changed;    // of loop.changed
};
struct scope {
    struct scope *up;    // the enclosing scope
    struct dict vars;
};
struct macro {
    const struct stmt *def;
    struct scope *scope;    // where it was defined
};
struct bound_method {
    struct value self;
    const struct function *method;
};
struct keyword {
    struct str name;
    struct value value;
};
struct args {
    struct value *v;
    int n;
    struct keyword *kw;
    int n_kw;
};
struct temp {    // a buffer that is released with the rendering, if not before
    struct buf b;
    struct temp *next;
};
struct render {
    struct fail fail;    // first: a struct render * is a struct fail *
    struct jinja_pool pool;
    const struct template *t;
    struct buf *out;    // where text is written now
    struct buf text;    // the whole
    struct temp *temps;
    json_t *held;    // an array of what from_json has read, from which strings are borrowed; freed with the rendering
    int64_t steps;
    int depth;
    const char *unprintable;    // kind of a value inside another that could not be printed, or NULL
    double now_s;
};
/* A function, method, filter or test. params: names in order, separated by spaces; NULL: any arguments, which call
 * examines. For filters, tests and methods v[0] is the subject. An argument not given is V_MISSING. */
struct function {
    const char *name;
    const char *params;
    struct value (*call)(struct render *r, struct value *v, const struct args *a);
    bool refused;    // in Python, but not supported here
};
#define PARAMS_MAX 8

static inline struct value jinja_of(enum value_kind kind)
{
    return (struct value){ .kind = kind };
}
static inline struct value jinja_bool(bool b)
{
    return (struct value){ .kind = V_BOOL, .b = b };
}
static inline struct value jinja_int(int64_t i)
{
    return (struct value){ .kind = V_INT, .i = i };
}
static inline struct value jinja_float(double f)
{
    return (struct value){ .kind = V_FLOAT, .f = f };
}
static inline struct value jinja_str(const char *p, size_t len)
{
    return (struct value){ .kind = V_STR, .s = { p, len } };
}
static inline bool jinja_str_equal(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || __builtin_memcmp(a.p, b.p, a.len) == 0);
}
static inline bool jinja_str_is(struct str a, const char *b)
{
    return jinja_str_equal(a, (struct str){ b, __builtin_strlen(b) });
}
struct buf *jinja_temp_new(struct render *r);                               // an empty buffer, owned by the rendering
void render_step(struct render *r, int64_t n);                              // count work; fails when it exceeds the limit
struct value jinja_new_str(struct render *r, const char *p, size_t len);    // a copy
struct value jinja_from_buf(struct render *r, struct buf *b);               // a copy; releases b
struct value jinja_from_json(struct render *r, const json_t *v, int depth);
struct value jinja_list_new(struct render *r, enum value_kind kind, int64_t cap);
void jinja_list_push(struct render *r, struct list *l, struct value v);
struct value jinja_dict_new(struct render *r);
void jinja_dict_set(struct render *r, struct dict *d, struct value key, struct value value);
struct value *jinja_dict_get(struct render *r, const struct dict *d, struct value key);    // NULL: not there
struct value *jinja_dict_get_str(const struct dict *d, struct str key);
struct value jinja_pair_new(struct render *r, struct value a, struct value b);    // a tuple
/* The values a dict yields when iterated: view 'i' (pairs), 'k' or 'v'; kind: of the list. */
struct value jinja_dict_view(struct render *r, const struct dict *d, enum value_kind kind, char view);
const char *jinja_type(const struct value *v);    // as Python names it: "str", "dict", ...
bool jinja_true(struct render *r, struct value v);
bool jinja_equal(struct render *r, struct value a, struct value b, int depth);
int jinja_compare(struct render *r, struct value a, struct value b, int depth);    // -1, 0, 1; fails where Python does
bool jinja_in(struct render *r, struct value needle, struct value stack);
struct list *jinja_items(struct render *r, struct value v);    // the items it yields; fails when it is not iterable
int64_t jinja_length(struct render *r, struct value v);        // len(); fails when it has none
bool jinja_is_number(struct value v);                          // int, float or bool
double jinja_number(struct value v);
int64_t jinja_whole(struct value v);                                            // of an int or bool
void jinja_print(struct render *r, struct buf *b, struct value v);              // str()
void jinja_repr(struct render *r, struct buf *b, struct value v, int depth);    // repr()
struct str jinja_text(struct render *r, struct value v);                        // str() as a string of the pool
void jinja_json(struct render *r, struct buf *b, struct value v, const struct value *opt, int depth);
struct value jinja_attr(struct render *r, struct value v, struct str name);     // v.name
struct value jinja_item(struct render *r, struct value v, struct value key);    // v[key]
struct value jinja_slice(struct render *r, struct value v, struct value from, struct value to, struct value by);
struct value jinja_binary(struct render *r, int op, struct value a, struct value b);
struct value jinja_call(struct render *r, struct value f, struct args *a);
struct value jinja_format(struct render *r, struct value subject, const struct args *a);    // subject.format(...), a string's
struct value jinja_percent(struct render *r, struct value subject, struct value args);      // subject % args, a string's
void jinja_args_bind(struct render *r, const struct function *f, struct value *v, int first, const struct args *a);
void jinja_text_escape(struct buf *b, struct str s);    // for HTML
const struct function *jinja_function_find(const struct function *table, size_t n, struct str name);

/* the tables */
const struct function *jinja_filter_find(struct str name);
const struct function *jinja_test_find(struct str name);
const struct function *jinja_method_find(const struct value *v, struct str name);
const struct function *jinja_global_find(struct str name);
struct value jinja_filter_call(struct render *r, const struct function *f, struct value subject, const struct args *a);
bool jinja_test_call(struct render *r, const struct function *f, struct value subject, const struct args *a);

/* strings by characters */
int64_t jinja_str_chars(struct str s);
struct str jinja_str_trim(struct str s, const struct str *chars, bool left, bool right);
bool jinja_char_is_space(uint32_t cp);    // Python's str.isspace
struct value jinja_str_case(struct render *r, struct str s, bool upper);
struct value jinja_str_split(struct render *r, struct str s, const struct value *sep, int64_t max, bool from_right);
struct value jinja_str_lines(struct render *r, struct str s);
struct value jinja_str_replace(struct render *r, struct str s, struct str from, struct str to, int64_t max);
int64_t jinja_str_find(struct str s, struct str what, size_t from);    // byte offset, -1: not there
int64_t jinja_str_find_last(struct str s, struct str what);
struct value jinja_str_capitalize(struct render *r, struct str s);
bool jinja_str_all_case(struct render *r, struct str s, bool upper);
void jinja_char_case(struct render *r, struct buf *b, uint32_t c, bool upper);    // c in upper or lower case, appended

/* ---- the tree ---- */
enum expr_kind {
    E_CONST,
    E_NAME,
    E_NSREF,
    E_LIST,
    E_TUPLE,
    E_DICT,
    E_ATTR,
    E_ITEM,
    E_SLICE,
    E_CALL,
    E_FILTER,
    E_TEST,
    E_NOT,
    E_AND,
    E_OR,
    E_COMPARE,
    E_BINARY,
    E_NEG,
    E_POS,
    E_CONCAT,
    E_COND,
};
enum {
    OP_ADD = 1,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};
struct expr {
    enum expr_kind kind;
    int line;
    int op;                    // of E_BINARY
    struct value value;        // of E_CONST
    struct str name;           // variable, attribute, filter, namespace
    struct str attr;           // of E_NSREF
    struct expr *a, *b, *c;    // operands; E_SLICE: from, to, step, NULL when left out
    struct expr **arg;         // (n_arg) items, arguments, operands; E_DICT: key, value, key, value ...
    int n_arg;
    struct str *kw_name;    // (n_kw) keyword arguments
    struct expr **kw;
    int n_kw;
    struct expr *star, *star_kw;        // *list and **dict among the arguments, or NULL
    int *ops;                           // (n_arg) of E_COMPARE
    const struct function *function;    // E_FILTER, E_TEST
};
enum stmt_kind {
    S_TEXT,
    S_OUTPUT,
    S_IF,
    S_FOR,
    S_SET,
    S_SET_BLOCK,
    S_MACRO,
    S_SCOPE,
    S_BREAK,
    S_CONTINUE,
    S_FILTER,    // a block of text through filters
    S_CALL,      // a call with a block of text as its caller
};
/* Names that a macro has only where its body uses them. */
enum macro_uses {
    USES_VARARGS = 1,
    USES_KWARGS = 2,
    USES_CALLER = 4,
};
struct stmt {
    enum stmt_kind kind;
    int line;
    struct stmt *next;
    struct str text;                // S_TEXT; name of S_MACRO, "caller" of S_CALL
    struct expr *expr;              // value, condition, what is iterated; filters of S_SET_BLOCK and S_FILTER over a NULL
                                    // subject; the call of S_CALL
    struct expr *target;            // S_SET, S_FOR, S_SET_BLOCK
    struct expr *filter;            // S_FOR: its "if"
    struct stmt *body, *other;      // other: else
    struct str *param;              // (n_param) of S_MACRO and S_CALL
    struct expr **param_default;    // (n_param) NULL: none
    int n_param;
    unsigned uses;    // of S_MACRO and S_CALL: enum macro_uses
};
struct template
{
    char *name;
    struct jinja_pool pool;
    struct stmt *body;
    json_t *tokens;               // special tokens by name (bos_token, ...), or NULL
    struct template *tool_use;    // renders in its place where there are tools; NULL: it renders all; owned
};
/* Read source into t->body; all in t->pool. */
bool template_parse(struct template *t, const char *source, size_t len, struct error *err);
void jinja_stmts_run(struct render *r, const struct stmt *s, struct scope *scope);
