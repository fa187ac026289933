#include "protocol/run/node.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/digest.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/settings/run_config.h"

bool node_here(const char *run_dir)
{
    char path[4200];
    return path_join(path, sizeof path, run_dir, NODE_FILE) && path_exists(path);
}

bool node_address(const char *text, const char *what, char out[280], struct error *err)
{
    const char *at = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text, *colon = strrchr(at, ':');
    int64_t port;
    if (!colon || colon == at || strlen(at) >= 280 || !parse_i64(colon + 1, &port) || port < 1 || port > 65535 || strpbrk(at, "/ "))
        return error_set(err, ERR_USAGE, "%s '%.100s' is not HOST:PORT, as tcp://10.0.0.1:29506", what, text);
    snprintf(out, 280, "%s", at);
    return true;
}

bool node_file_name_ok(const char *name)
{
    static const char *const folders[] = { NODE_CHAT_TEMPLATES "/", "model/", "data/" };
    const char *rest = "";
    for (size_t i = 0; i < ARRAY_SIZE(folders) && !rest[0]; i++)
        if (strncmp(name, folders[i], strlen(folders[i])) == 0)
            rest = name + strlen(folders[i]);
    return rest[0] && rest[0] != '.' && !strchr(rest, '/') && strlen(name) < 160;
}

bool node_file_hash(const char *path, char hex[65], int64_t *size_bytes, void (*tick)(void *ctx), void *ctx, struct error *err)
{
    struct digest d;
    ssize_t n = -1;
    char *piece = malloc((size_t)NODE_PIECE_BYTES);
    int fd = piece ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    *size_bytes = 0;
    digest_init(&d, true);
    while (fd >= 0 && (n = read(fd, piece, (size_t)NODE_PIECE_BYTES)) > 0) {
        digest_add(&d, piece, (size_t)n);
        *size_bytes += n;
        if (tick)
            tick(ctx);
    }
    bool ok = fd >= 0 && n == 0;
    if (!ok)
        error_errno(err, "cannot read '%s'", path);
    if (fd >= 0)
        close(fd);
    free(piece);
    digest_hex(&d, hex);
    return ok;
}

bool node_read(struct node *n, const char *run_dir, struct error *err)
{
    char path[4200];
    json_error_t why;
    struct buf text = BUF_INIT;
    *n = (struct node){ 0 };
    snprintf(path, sizeof path, "%s/" NODE_FILE, run_dir);
    if (!file_read_text(&text, path, 65536, err))
        return false;
    json_t *o = json_text_read(buf_text(&text), text.len, 0, &why);
    const char *name = json_string_value(json_object_get(o, "name")), *id = json_string_value(json_object_get(o, "id"));
    const char *head = json_string_value(json_object_get(o, "head")), *hash = json_string_value(json_object_get(o, "hash"));
    bool ok = name && id && head && strlen(id) == 32;
    if (ok) {
        snprintf(n->name, sizeof n->name, "%.32s", name);
        snprintf(n->id, sizeof n->id, "%.32s", id);
        snprintf(n->head, sizeof n->head, "%.270s", head);
        snprintf(n->hash, sizeof n->hash, "%.64s", hash ? hash : "");
        n->wait_s = json_number_value(json_object_get(o, "wait_s"));
        const char *heads = json_string_value(json_object_get(o, "heads"));
        snprintf(n->heads, sizeof n->heads, "%.2000s", heads ? heads : n->head);
        n->n_device = json_integer_value(json_object_get(o, "devices"));
        const json_t *first = json_object_get(o, "first_trainer");
        n->first_trainer = first ? json_integer_value(first) : -1;
        gethostname(n->host, sizeof n->host - 1);
        ok = node_name_check(n->name, err);
    } else {
        error_set(err, ERR_DATA, "'%s' is not a node's file", path);
    }
    json_decref(o);
    buf_release(&text);
    return ok;
}

bool node_write(const struct node *n, const char *run_dir, struct error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/" NODE_FILE, run_dir);
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s,s:f,s:I,s:I}", "name", n->name, "id", n->id, "head", n->head, "heads", n->heads, "hash",
                          n->hash, "wait_s", n->wait_s, "devices", (json_int_t)n->n_device, "first_trainer", (json_int_t)n->first_trainer);
    char *text = o ? json_text_dump(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(o);
    bool ok = text ? file_write(path, text, strlen(text), err) : error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
    free(text);
    return ok;
}

bool node_config(struct run_config *c, const char *run_dir, struct error *err)
{
    struct node n;
    if (!node_here(run_dir))
        return true;
    c->node_only = true;
    c->first_trainer = -1;
    if (!node_read(&n, run_dir, err))
        return false;
    c->first_trainer = n.first_trainer;
    return true;
}

void node_head_host(const struct node *n, char *out, size_t size)
{
    const char *colon = strrchr(n->head, ':');
    int len = colon ? (int)(colon - n->head) : (int)strlen(n->head);
    bool brackets = n->head[0] == '[' && len > 1 && n->head[len - 1] == ']';    // [::1]
    snprintf(out, size, "%.*s", len - 2 * brackets, n->head + brackets);
}

bool node_heads_read(struct node *n, const char *list, const char *what, struct error *err)
{
    size_t at = 0;
    n->heads[0] = 0;
    for (const char *word = list; *word; word += strcspn(word, ","), word += *word == ',') {
        char text[300], one[280];
        snprintf(text, sizeof text, "%.*s", (int)MIN(strcspn(word, ","), sizeof text - 1), word);
        if (!node_address(text, what, one, err))
            return false;
        if (at + strlen(one) + 2 > sizeof n->heads)
            return error_set(err, ERR_USAGE, "%s has too many addresses", what);
        at += (size_t)snprintf(n->heads + at, sizeof n->heads - at, "%s%s", at ? "," : "", one);
    }
    if (at == 0)
        return node_address("", what, n->head, err);
    snprintf(n->head, sizeof n->head, "%.*s", (int)strcspn(n->heads, ","), n->heads);
    return true;
}

bool node_head_next(struct node *n)
{
    const char *word = n->heads;
    size_t len = strlen(n->head);
    if (!strchr(n->heads, ','))
        return false;
    while (*word && (strncmp(word, n->head, len) != 0 || (word[len] && word[len] != ',')))
        word += strcspn(word, ","), word += *word == ',';
    word += strcspn(word, ",");
    word = *word ? word + 1 : n->heads;
    snprintf(n->head, sizeof n->head, "%.*s", (int)MIN(strcspn(word, ","), sizeof n->head - 1), word);
    return true;
}
