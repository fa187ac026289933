/* node_speak HOST:PORT TOKEN-FILE - say anything to a run's gate, as a node that may speak the protocol wrongly
 *
 * Each line of stdin is a message as JSON: {"t": "node", ...} with whatever fields; {"bytes": "00ff"} is a value of bytes. Each gets a line:
 * the answer's fields, or {"refused": CODE, "reason": TEXT}; of bytes only the number. One connection, as long as it runs. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/wire/join_token.h"
#include "protocol/wire/transport.h"

#define ASK_MS 60000
#define LINE_SIZE ((size_t)1 << 20)

static void value_write(struct msg_out *m, const char *key, json_t *v);

static void bytes_write(struct msg_out *m, const char *key, const char *hex)
{
    size_t n = strlen(hex) / 2;
    unsigned char *bytes = calloc(1, n + 1);
    for (size_t i = 0; bytes && i < n; i++)
        sscanf(hex + 2 * i, "%2hhx", &bytes[i]);
    msg_bin(m, key, bytes, n);
    free(bytes);
}

static void fields_write(struct msg_out *m, json_t *map)
{
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at))
        if (strcmp(json_object_iter_key(at), "t") != 0)
            value_write(m, json_object_iter_key(at), json_object_iter_value(at));
}

static void value_write(struct msg_out *m, const char *key, json_t *v)
{
    if (json_is_integer(v)) {
        msg_i64(m, key, json_integer_value(v));
    } else if (json_is_real(v)) {
        msg_f64(m, key, json_real_value(v));
    } else if (json_is_string(v)) {
        msg_str(m, key, json_string_value(v));
    } else if (json_is_boolean(v)) {
        msg_bool(m, key, json_is_true(v));
    } else if (json_object_get(v, "bytes")) {
        bytes_write(m, key, json_string_value(json_object_get(v, "bytes")));
    } else if (json_is_object(v)) {
        msg_map(m, key);
        fields_write(m, v);
        msg_end(m);
    } else {
        msg_list(m, key);
        for (size_t i = 0; i < json_array_size(v); i++)
            value_write(m, NULL, json_array_get(v, i));
        msg_end(m);
    }
}

/* A value of an answer; a new reference. */
static json_t *value_read(const struct mval *v)
{
    size_t len = 0;
    if (mval_is(v, KIND_STR)) {
        const char *text = mval_str(v, &len);
        return json_stringn(text, len);
    }
    if (mval_is(v, KIND_BOOL))
        return json_boolean(mval_bool(v, false));
    if (mval_is(v, KIND_I64))
        return json_integer(mval_i64(v, 0));
    if (mval_is(v, KIND_F64))
        return json_real(mval_f64(v, 0));
    if (mval_is(v, KIND_BIN)) {
        (void)mval_bin(v, &len);
        return json_integer((json_int_t)len);
    }
    bool is_map = mval_is(v, KIND_MAP);
    json_t *out = is_map ? json_object() : json_array();
    for (int64_t i = 0; i < mval_n(v); i++) {
        const char *key = is_map ? mval_key(v, i, &len) : NULL;
        if (key)
            json_object_setn_new(out, key, len, value_read(mval_at(v, i)));
        else if (!is_map)
            json_array_append_new(out, value_read(mval_at(v, i)));
    }
    return out;
}

static enum msg_type type_find(const char *name)
{
    for (int i = 0; name && i < MSG_TYPE_COUNT; i++)
        if (strcmp(msg_specs[i].name, name) == 0)
            return (enum msg_type)i;
    return MSG_TYPE_COUNT;
}

/* Say what line has, and return what is answered; a new reference. */
static json_t *said(struct peer *p, const char *line)
{
    struct error err = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    json_t *o = json_loads(line, 0, NULL), *answer = NULL;
    enum msg_type type = type_find(json_string_value(json_object_get(o, "t")));
    if (type == MSG_TYPE_COUNT) {
        error_set(&err, ERR_USAGE, "no message: %.200s", line);
        goto out;
    }
    msg_begin(&m, type);
    fields_write(&m, o);
    if (msg_finish(&m, &err) && peer_call(p, type, &m, ASK_MS, &in, &ev, &err)) {
        answer = value_read(in.root);
        msg_in_release(&in);
        net_event_release(&ev);
    }
out:
    if (!answer)
        answer = json_pack("{s:s, s:s}", "refused", error_code_name(err.code), "reason", err.text);
    json_decref(o);
    msg_release(&m);
    return answer;
}

int main(int argc, char **argv)
{
    struct error err = { 0 };
    static struct join_identity id;
    char token[JOIN_TOKEN_LEN + 1], dir[] = "/tmp/node-speak-XXXXXX", *line = malloc(LINE_SIZE);
    struct transport *t = NULL;
    struct peer *p = NULL;
    bool ok = argc == 3 && line && mkdtemp(dir) && join_token_read(token, argv[2], &err) && join_identity_make(&id, token, NULL, &err)
              && (t = transport_new(dir, false, &err)) && (p = peer_new_tls(t, argv[1], &id, &err));
    if (!ok)
        fprintf(stderr, "node_speak: %s\n", argc == 3 ? err.text : "usage: node_speak HOST:PORT TOKEN-FILE");
    while (ok && fgets(line, (int)LINE_SIZE, stdin)) {
        json_t *answer = said(p, line);
        ok = json_dumpf(answer, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
        json_decref(answer);
    }
    transport_free(t);
    ok = dir_remove(dir, &err) && ok;
    free(line);
    return ok ? 0 : 1;
}
