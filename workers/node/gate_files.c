/* The files that a node needs, listed when the gate opens and sent in pieces, and the weights of each version as they appear: offered over
 * connections of their own (bulk_server.h), or in pieces, too. */
#include "workers/node/gate_parts.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/data/files.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/publish/publication.h"
#include "protocol/base/digest.h"

#define SETTINGS_MAX ((size_t)1 << 20)

static void beat_tick(void *ctx)
{
    struct net_event ev;
    struct gate *g = ctx;
    g->process.progress++;
    if (process_wait(&g->process, &ev, 0))    // nothing is open yet, so nothing is lost
        net_event_release(&ev);
}

static bool file_add(struct gate *g, const char *name, const char *path, struct error *err)
{
    if (g->n_file == NODE_FILES_MAX)
        return error_set(err, ERR_FULL, "a node would need more than %d files", NODE_FILES_MAX);
    struct node_file *f = &g->file[g->n_file];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->path, sizeof f->path, "%s", path);
    if (!node_file_name_ok(f->name))
        return error_set(err, ERR_UNSUPPORTED, "'%s' cannot be sent to other nodes: its name is too long or hidden", path);
    if (!node_file_hash(path, f->hash, &f->size_bytes, beat_tick, g, err))
        return false;
    g->n_file++;
    return true;
}

/* The data's files. Several are told apart by a number, and from those of another time in the node's folder by a hash of all: the node
 * reads them by the pattern data/HASH-*. */
static bool data_add(struct gate *g, struct error *err)
{
    struct data_files files;
    char name[300], all[65];
    struct digest d;
    if (!data_files_find(&files, g->config.dataset, err))
        return false;
    bool ok = files.n <= NODE_DATA_FILES_MAX
              || error_set(err, ERR_FULL, "'%s' has %d files, and nodes take at most %d", g->config.dataset, files.n, NODE_DATA_FILES_MAX);
    int first = g->n_file;
    digest_init(&d, true);
    for (int i = 0; i < files.n && ok; i++) {
        const char *slash = strrchr(files.path[i], '/'), *last = slash ? slash + 1 : files.path[i];
        size_t len = strlen(last);
        snprintf(name, sizeof name, "data/%s", len > 120 ? last + len - 120 : last);
        ok = file_add(g, name, files.path[i], err);
        if (ok)
            digest_add(&d, g->file[g->n_file - 1].hash, 64);
    }
    digest_hex(&d, all);
    for (int i = first; i < g->n_file && files.n > 1; i++) {
        snprintf(name, sizeof name, "data/%.12s-%05d-%.120s", all, i - first, g->file[i].name + 5);
        snprintf(g->file[i].name, sizeof g->file[i].name, "%s", name);
    }
    data_files_release(&files);
    return ok;
}

static int text_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The weights to begin with, which trainers need. */
static bool weights_add(struct gate *g, struct error *err)
{
    char found[NODE_FILES_MAX][140], path[4300], name[160];
    int n = 0;
    DIR *d = opendir(g->config.model);
    if (!d)
        return error_errno(err, "cannot list '%s'", g->config.model);
    for (struct dirent *e; (e = readdir(d)) && n < NODE_FILES_MAX;) {
        const char *dot = strstr(e->d_name, ".safetensors");
        if (dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".safetensors.index.json") == 0) && strlen(e->d_name) < sizeof found[0])
            snprintf(found[n++], sizeof found[0], "%s", e->d_name);
    }
    closedir(d);
    qsort(found, (size_t)n, sizeof found[0], text_compare);
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        snprintf(name, sizeof name, "model/%s", found[i]);
        ok = (path_join(path, sizeof path, g->config.model, found[i]) || error_set(err, ERR_USAGE, "the path '%s' is too long", found[i]))
             && file_add(g, name, path, err);
    }
    return ok;
}

/* The model's config.json. Nodes that only sample get no files of weights, so that they could not see that those hold another head than
 * the embedding: what they get says that the two are not tied. */
static bool config_add(struct gate *g, const char *name, char *path, size_t size, struct error *err)
{
    struct model_config shape;
    struct buf text = BUF_INIT;
    json_t *config = NULL;
    char *printed = NULL;
    bool ok = false;
    TRY(config_load(&shape, g->config.model, err));
    if (shape.head_differs) {
        TRY(file_read_text(&text, path, SETTINGS_MAX, err));
        TRY(config = json_text_parse(buf_text(&text), text.len, 0, path, err));
        json_t *part = json_object_get(config, "text_config");    // of a model of images and text
        json_object_set_new(config, "tie_word_embeddings", json_false());
        if (json_is_object(part))
            json_object_set_new(part, "tie_word_embeddings", json_false());
        if (!(printed = json_text_dump(config, JSON_INDENT(2)))) {
            error_set(err, ERR_NO_MEMORY, "no memory for the model's config.json");
            goto out;
        }
        snprintf(path, size, "%s/sock/config.json", g->process.run_dir);
        TRY(file_write(path, printed, strlen(printed), err));
    }
    ok = file_add(g, name, path, err);
out:
    free(printed);
    json_decref(config);
    buf_release(&text);
    return ok;
}

/* Settings, the model's small files and the data; weights come with each version, and to trainers at first. */
bool files_make(struct gate *g, struct error *err)
{
    char path[4300], name[300];
    struct digest d;
    snprintf(path, sizeof path, "%s/run.yaml", g->process.run_dir);
    if (!file_read(&g->settings, path, SETTINGS_MAX, err))
        return false;
    for (int i = 0; model_dir_file(i); i++) {
        snprintf(name, sizeof name, "model/%s", model_dir_file(i));
        if (!path_join(path, sizeof path, g->config.model, model_dir_file(i)) || !path_exists(path))
            continue;
        bool is_config = strcmp(model_dir_file(i), "config.json") == 0;
        if (!(is_config ? config_add(g, name, path, sizeof path, err) : file_add(g, name, path, err)))
            return false;
    }
    if (!data_add(g, err))
        return false;
    g->n_common = g->n_file;
    if (run_config_n_host(&g->config) > 1 && !weights_add(g, err))
        return false;
    digest_init(&d, true);
    digest_add(&d, g->settings.data, g->settings.len);
    for (int i = 0; i < g->n_file; i++) {
        digest_add(&d, g->file[i].name, strlen(g->file[i].name) + 1);
        digest_add(&d, g->file[i].hash, 64);
    }
    digest_hex(&d, g->hash);
    return true;
}

/* The path of a file in a folder of the run, when its name stays inside. */
static bool inside(char *path, size_t size, const char *folder, const char *name)
{
    return name[0] && name[0] != '/' && !strstr(name, "..") && path_join(path, size, folder, name) && path_exists(path);
}

/* The file of a trainers' meeting, or of a checkpoint; "": there is none of that name. */
static void trainers_file_find(const struct gate *g, const char *name, char *path, size_t size)
{
    char folder[4200];
    size_t meeting = strlen(NODE_MEETING), checkpoint = strlen(NODE_CHECKPOINT);
    path[0] = 0;
    if (run_config_n_host(&g->config) == 1)
        return;
    snprintf(folder, sizeof folder, "%s/sock", g->process.run_dir);
    if (strncmp(name, NODE_MEETING "trainers-", meeting + 9) == 0 && !strchr(name + meeting, '/')
        && inside(path, size, folder, name + meeting))
        return;
    path[0] = 0;
    snprintf(folder, sizeof folder, "%s/checkpoints", g->process.run_dir);
    const char *place[] = { g->config.save_dir, folder };
    for (size_t i = 0; i < ARRAY_SIZE(place) && strncmp(name, NODE_CHECKPOINT "step-", checkpoint + 5) == 0; i++)
        if (place[i][0] && inside(path, size, place[i], name + checkpoint))
            return;
    path[0] = 0;
}

void file_asked(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct stat st;
    struct msg_out m = MSG_OUT_INIT;
    char name[160], path[4300] = "";
    int fd = -1;
    int64_t version = mval_i64(mval_get(in->root, "version"), -1), offset = mval_i64(mval_get(in->root, "offset"), -1);
    int64_t n = mval_i64(mval_get(in->root, "n_bytes"), 0);
    char *piece = NULL;
    mval_text(in->root, "name", name, sizeof name);
    for (int i = 0; !path[0] && i < g->n_file; i++)
        if (strcmp(g->file[i].name, name) == 0)
            snprintf(path, sizeof path, "%s", g->file[i].path);
    bool of_trainers = !path[0]
                       && (strncmp(name, NODE_MEETING, strlen(NODE_MEETING)) == 0
                           || strncmp(name, NODE_CHECKPOINT, strlen(NODE_CHECKPOINT)) == 0);
    if (of_trainers && !gate_lent(g, r))    // a lent machine does not train
        trainers_file_find(g, name, path, sizeof path);
    if (of_trainers && !path[0]) {
        error_set(&err, ERR_NOT_FOUND, "the head does not have '%s', or no longer has it", name);
        goto refuse;
    }
    if (!path[0] && version >= 0) {
        weights_file_path(g->process.run_dir, mval_i64(mval_get(in->root, "made"), 0), version, path, sizeof path);
        snprintf(name, sizeof name, "weights of version %" PRId64, version);
    }
    if (!path[0] || offset < 0 || n < 1 || n > NODE_PIECE_BYTES) {
        error_set(&err, ERR_DATA, "no file '%s', or not 1 to %" PRId64 " bytes from an offset on", name, NODE_PIECE_BYTES);
        goto refuse;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        error_set(&err, ERR_NOT_FOUND, "the head does not have %s, or no longer has it", name);
        goto refuse;
    }
    n = MAX(MIN(n, st.st_size - offset), (int64_t)0);
    piece = malloc((size_t)MAX(n, (int64_t)1));
    ssize_t got = piece ? pread(fd, piece, (size_t)n, offset) : -1;
    if (got != n) {
        error_errno(&err, "cannot read '%s'", path);
        goto refuse;
    }
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "size_bytes", st.st_size);
    msg_i64(&m, "stamp",
            (int64_t)(((uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec + (uint64_t)st.st_ino) & INT64_MAX));
    msg_bin(&m, "data", piece, (size_t)n);
    if (msg_finish(&m, &err)) {
        request_answer(r, &m);
        g->n_piece++;
        g->process.progress++;
        goto out;
    }
refuse:
    request_refuse(r, &err);
out:
    if (fd >= 0)
        close(fd);
    free(piece);
    msg_release(&m);
}

static void offer_answer(struct gate *g, struct request *r, struct bulk_offer *o)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_bin(&m, "name", o->ticket.name, sizeof o->ticket.name);
    msg_bin(&m, "key", o->ticket.key, sizeof o->ticket.key);
    msg_i64(&m, "size_bytes", o->size_bytes);
    msg_i64(&m, "file_key", (int64_t)o->key);
    msg_bool(&m, "has_base", o->has_base);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    g->process.progress++;
    explicit_bzero(o, sizeof *o);
    msg_release(&m);
}

/* A large file of a checkpoint, for a node with trainers. */
static void checkpoint_asked(struct gate *g, struct request *r, const char *name)
{
    struct error err;
    struct bulk_offer o;
    char path[4300] = "";
    if (!gate_lent(g, r) && strncmp(name, NODE_CHECKPOINT, strlen(NODE_CHECKPOINT)) == 0)
        trainers_file_find(g, name, path, sizeof path);
    if (!path[0])
        error_set(&err, ERR_NOT_FOUND, "the head does not have '%s', or no longer has it", name);
    if (path[0] && bulk_server_offer_file(g->bulk, path, &o, &err))
        offer_answer(g, r, &o);
    else
        request_refuse(r, &err);
}

void weights_asked(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct bulk_offer o;
    char path[4300], base[4300], name[160];
    int64_t version = mval_i64(mval_get(in->root, "version"), -1), base_version = mval_i64(mval_get(in->root, "base_version"), -1);
    weights_file_path(g->process.run_dir, mval_i64(mval_get(in->root, "made"), 0), version, path, sizeof path);
    weights_file_path(g->process.run_dir, mval_i64(mval_get(in->root, "base_made"), 0), base_version, base, sizeof base);
    uint64_t base_key = (uint64_t)mval_i64(mval_get(in->root, "base_key"), 0);
    mval_text(in->root, "name", name, sizeof name);
    if (name[0]) {
        checkpoint_asked(g, r, name);
        return;
    }
    if (!bulk_server_offer(g->bulk, path, base_version >= 0 ? base : NULL, base_key, mval_bool(mval_get(in->root, "links"), false), &o,
                           &err)) {
        if (err.code == ERR_NOT_FOUND)
            error_set(&err, ERR_NOT_FOUND, "the head does not have weights of version %" PRId64 ", or no longer has them", version);
        request_refuse(r, &err);
        return;
    }
    offer_answer(g, r, &o);
}
