/* message.h - the messages between rollcall's processes: one table, written and read as msgpack maps
 *
 * A message is a map. Every message holds "v" (PROTOCOL_VERSION) and "t" (its name in the table); the table lists the other fields,
 * for the request and for its answer. Unknown fields are ignored, unknown names refused with a reason, a missing or mistyped field
 * is named. An answer is "ok" with the fields of the request's answer, or "refused" with code and reason. Writing: a struct msg_out
 * owns a growing buffer. Reading: bytes are walked and bounded (msg_check) before msgpack-c unpacks them; values are borrowed from
 * the struct msg_in. README.md is printed from the table. One thread per struct. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define PROTOCOL_VERSION 1
#define MSG_BYTES_MAX ((size_t)64 << 20)    // of one message, both sides
#define MSG_DEPTH_MAX 12                    // maps and lists inside each other
#define MSG_VALUES_MAX 4000000              // values in one message, everything counted

enum msg_type {
    MSG_OK,
    MSG_REFUSED,
    /* to the agent */
    MSG_HEARTBEAT,
    MSG_PUBLISH,
    MSG_STATUS,
    MSG_KEPT,
    /* to the controller; an agent passes these on for console and ctl */
    MSG_COMMAND,
    MSG_STEPS,
    MSG_EVENTS,
    MSG_ROLLOUTS,
    MSG_CHECKPOINTS,
    /* worker to controller */
    MSG_WORK,
    MSG_GROUP,
    MSG_STOPPED,
    MSG_FETCH,
    MSG_EVALUATED,
    MSG_DONE,
    /* to the scorer */
    MSG_SCORE,
    MSG_TURN,
    /* from another node to the head's gate */
    MSG_JOIN,
    MSG_NODE,
    MSG_FILE,
    MSG_WEIGHTS,
    /* gate to controller */
    MSG_GONE,
    MSG_TYPE_COUNT,
};
enum msg_kind {
    KIND_I64,
    KIND_F64,
    KIND_STR,
    KIND_BOOL,
    KIND_BIN,
    KIND_MAP,
    KIND_LIST,
};
struct msg_field {
    const char *name;
    enum msg_kind kind;
    bool optional;
    const char *help;    // meaning and unit
};
struct msg_spec {
    const char *name;         // "t" on the wire
    const char *from, *to;    // the side that sends, and the one that answers
    const char *help;
    const struct msg_field *request;    // ends with a row without name
    const struct msg_field *answer;
};
extern const struct msg_spec msg_specs[MSG_TYPE_COUNT];

/* What an operator may ask of a run, by "command" (MSG_COMMAND). */
enum command_arg {    // the argument after the command's name
    ARG_NONE,
    ARG_CHOICE,    // one word of choices; omitted: the first of them
    ARG_TEXT,      // a text, including blanks
    ARG_LINE,      // a whole number from 1
    ARG_NUMBER,    // a whole number from 0
    ARG_VALUES,    // NAME=VALUE, once or more: a map of texts
};
struct command_spec {
    const char *name;
    const char *args;    // the field of its args map, for help; "" with ARG_NONE
    enum command_arg arg;
    const char *choices;    // "step|drain", with ARG_CHOICE
    const char *needs;      // what the argument is, for the message when it is missing
    const char *help;
    double limit_s;    // default time limit
    bool costs;        // the console asks before it sends this
};
extern const struct command_spec command_specs[];
extern const int n_command_specs;
const struct command_spec *command_find(const char *name, struct error *err);    // ERR_USAGE: names the nearest
#define COMMAND_LIMIT_S 600                                                      // of one that names none, on its way
#define COMMAND_LIMIT_MIN_S 0.1
#define COMMAND_LIMIT_MAX_S 86400.0

/* Writing. Between msg_begin and msg_finish each call adds a field (key NULL inside a list). */
struct msg_out {
    struct buf buf;
    int depth;
    struct {
        size_t at;
        uint32_t n;
        bool is_map;
    } level[MSG_DEPTH_MAX];
};
#define MSG_OUT_INIT ((struct msg_out){ .buf = { .max = MSG_BYTES_MAX } })
void msg_begin(struct msg_out *m, enum msg_type type);    // empties m
void msg_i64(struct msg_out *m, const char *key, int64_t v);
void msg_f64(struct msg_out *m, const char *key, double v);    // NaN is kept
void msg_bool(struct msg_out *m, const char *key, bool v);
void msg_str(struct msg_out *m, const char *key, const char *v);    // NULL: an empty string
void msg_strn(struct msg_out *m, const char *key, const char *v, size_t len);
void msg_bin(struct msg_out *m, const char *key, const void *v, size_t len);    // arrays travel as little-endian bytes
void msg_map(struct msg_out *m, const char *key);
void msg_list(struct msg_out *m, const char *key);
void msg_end(struct msg_out *m);    // of the innermost map or list
struct mval;
void msg_copy(struct msg_out *m, const char *key, const struct mval *v);    // copies a value read from another message
/* Copy the fields of a map: those named in names (" name name "), or all but those. */
void msg_copy_only(struct msg_out *m, const struct mval *map, const char *names);
void msg_copy_but(struct msg_out *m, const struct mval *map, const char *names);
/* Values of a list that is written into many messages: begun in an m of its own, which is no message, and then added to the open list
 * of another as often as wanted. */
void msg_values_begin(struct msg_out *m);
void msg_values_add(struct msg_out *m, const struct msg_out *values);
/* Close the message; ERR_FULL when it has grown beyond MSG_BYTES_MAX. Its bytes are m->buf. */
MUST_USE bool msg_finish(struct msg_out *m, struct error *err);
void msg_release(struct msg_out *m);
/* A whole refusal: code and reason of why. */
void msg_refuse(struct msg_out *m, const struct error *why);

/* Reading. */
struct msg_in {
    enum msg_type type;
    const struct mval *root;    // the map; NULL when nothing is held
    void *zone;                 // msgpack-c's memory
    const void *data;           // (len) the message itself; borrowed
    size_t len;
};
/* Only the walk: sizes, depth and number of values of one msgpack value in exactly len bytes. */
MUST_USE bool msg_check(const void *data, size_t len, struct error *err);
/* Check, unpack and compare with the table; data must outlive in. On failure in holds nothing. */
MUST_USE bool msg_read_request(struct msg_in *in, const void *data, size_t len, struct error *err);
/* As msg_read_request, for the answer to a request of type asked. A refusal is returned in err with the sender's code and reason. */
MUST_USE bool msg_read_answer(struct msg_in *in, enum msg_type asked, const void *data, size_t len, struct error *err);
void msg_in_release(struct msg_in *in);

/* Values; v may be NULL everywhere (then it is absent). */
const struct mval *mval_get(const struct mval *map, const char *key);    // NULL: absent, nil or not a map
int64_t mval_n(const struct mval *v);                                    // pairs of a map or members of a list; 0 else
const struct mval *mval_at(const struct mval *list, int64_t i);          // member of a list, or value of a map's pair i
const char *mval_key(const struct mval *map, int64_t i, size_t *len);    // key of pair i; not NUL-terminated; NULL: not text
bool mval_is(const struct mval *v, enum msg_kind kind);
int64_t mval_i64(const struct mval *v, int64_t otherwise);
double mval_f64(const struct mval *v, double otherwise);    // integers too
bool mval_bool(const struct mval *v, bool otherwise);
const char *mval_str(const struct mval *v, size_t *len);    // NULL when not text; not NUL-terminated
const void *mval_bin(const struct mval *v, size_t *len);
/* Text of field key into out, cut to size, NUL-terminated; "" when absent. Returns out. */
char *mval_text(const struct mval *map, const char *key, char *out, size_t size);
/* How long the sender of a command waits: its limit_s, or otherwise_s, kept between COMMAND_LIMIT_MIN_S and COMMAND_LIMIT_MAX_S. */
int64_t command_limit_ms(const struct mval *command, double otherwise_s);

/* The tables as Markdown: the second half of README.md. */
void msg_print_docs(struct buf *out);
