/* bench_publish.c - how long new weights take from the trainer's device to a producer's, compared with a bare broadcast
 *
 * Two processes, as in a run: this one has the outlet and the first device, a forked one the inlet and the others; on several it has
 * slices. Each round is a new version. ms: from the start of outlet_share until the producer, which waits for the version, has it in its
 * weights and the hashes of all tensors agree (snapshot on the trainer's device, transfer, two hashes). With --slots 0 there is no snapshot,
 * and ms ends when the version has been withdrawn. held_bytes: what the producer's first device has for weights and their publication. staged_ms and take_ms: the same for a producer that is
 * sampling meanwhile, until the version is complete in its staging buffer; then the copy into its weights between two steps.
 * raw_ms: one broadcast of the same number of bytes, nothing else. Clocks: both processes read one monotonic clock. Medians. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/bench/bench.h"
#include "console/bench/bench_tools.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/inlet.h"
#include "workers/engine/publish/outlet.h"

#define ROUNDS_MAX 64
#define WAIT_MS 60000
#define PATTERN_BYTES ((size_t)97 << 20 | 13 * 256)    // not a divisor of a bucket: swapped equal buckets would go unnoticed

enum order {
    ORDER_TAKE,
    ORDER_JOIN,
    ORDER_RAW,
    ORDER_HASH,
    ORDER_END,
};
struct order_msg {
    enum order order;
    int64_t version;
    struct comm_id id;
};
struct reply {
    bool ok;
    int64_t begun_ns, ended_ns;
    uint64_t hash;
    size_t held_bytes;
    char text[256];
};
struct side {    // one of the two processes
    const struct model_config *shape;
    struct device *dev, *more[PLACE_MAX];    // more: the first is dev
    int n_device;
    struct model *model;
    struct bundle bundle;
    struct places places;
    void *weights;    // of the first device
    size_t size_bytes;
    const struct mem_handle *handle;
    struct comm *raw;
    int fd;    // the other one
};

static bool comm_wait(struct comm *c, struct error *err)
{
    int64_t end = clock_ms() + WAIT_MS;
    for (;;) {
        enum comm_state s = comm_poll(c, err);
        if (s != COMM_BUSY)
            return s == COMM_READY;
        if (clock_ms() > end)
            return error_set(err, ERR_TIMEOUT, "the bare broadcast has not ended in %d s", WAIT_MS / 1000);
    }
}

static bool raw_broadcast(struct side *s, struct error *err)
{
    struct comm_broadcast b = { .buf = s->weights, .size_bytes = s->size_bytes, .bucket_bytes = (s->size_bytes + 255) / 256 * 256 };
    return comm_broadcast(s->raw, &b, err) && comm_wait(s->raw, err);
}

/* The hash of all tensors, in one number. */
static bool weights_hash(struct side *s, uint64_t *hash, struct error *err)
{
    uint64_t *all = calloc((size_t)s->bundle.n, sizeof *all);
    struct hasher *h = hasher_new(&s->bundle, &s->dev, 1, err);
    bool ok = h && all && bundle_hash(h, s->weights, all, err);
    if (ok)
        *hash = bundle_hash_join(all, s->bundle.n);
    hasher_free(h);
    free(all);
    return ok;
}

/* Open the devices, and the model on them. shares: others are to open its memory. */
static bool side_open(struct side *s, const char *devices, bool shares, struct error *err)
{
    char name[32];
    for (const char *at = devices; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(at, ","), sizeof name - 1), at);
        if (s->n_device == PLACE_MAX)
            return error_set(err, ERR_USAGE, "--devices names more than %d for the producer", PLACE_MAX);
        if (!(s->more[s->n_device] = device_new(name, 1, err)))
            return false;
        s->n_device++;
    }
    s->dev = s->more[0];
    if (!device_enter(s->dev, err))
        return false;
    s->model = s->n_device > 1 ? model_new_shape(s->shape, s->dev, DT_BF16, err) : model_new_empty(s->shape, s->dev, DT_BF16, err);
    if (!s->model || !model_parts_set(s->model, s->n_device, err) || !model_team(s->model, s->more, s->n_device, err)
        || (shares && !(s->handle = model_share(s->model, err))) || !bundle_of_model(&s->bundle, s->model, err)
        || !places_of_model(&s->places, s->model, err))
        return false;
    s->weights = s->places.at[0].mem;
    s->size_bytes = s->bundle.size_bytes;
    return true;
}

static void side_close(struct side *s)
{
    comm_free(s->raw);
    places_release(&s->places);
    bundle_release(&s->bundle);
    model_free(s->model);
    for (int i = s->n_device - 1; i >= 0; i--)
        device_free(s->more[i]);
}

/* ---- the producer's process ---- */

static bool order_do(struct side *s, struct inlet *in, const struct order_msg *m, struct reply *r, struct error *err)
{
    r->begun_ns = clock_ns();
    switch (m->order) {
    case ORDER_TAKE: return inlet_take(in, &s->places, m->version, WAIT_MS, &r->hash, err);
    case ORDER_JOIN: return (s->raw = comm_new(s->dev, &m->id, 2, 1, err)) && comm_wait(s->raw, err);
    case ORDER_RAW: return raw_broadcast(s, err);
    case ORDER_HASH: return s->n_device > 1 || weights_hash(s, &r->hash, err);    // of slices inlet_take has said it
    case ORDER_END: break;
    }
    return true;
}

static void producer_main(struct side *s, const char *devices, const char *dir, enum weights_way way, bool staged)
{
    struct error err = { 0 };
    struct order_msg m;
    struct reply r = { .ok = side_open(s, devices, false, &err) };
    struct inlet_config c = {
        .dev = s->more, .n_device = s->n_device, .dir = dir, .name = devices, .way = way, .staged = staged, .bundle = &s->bundle
    };
    struct inlet *in = r.ok ? inlet_new(&c, &err) : NULL;
    r.ok = in != NULL;
    r.held_bytes = in ? model_held_bytes(s->model) + inlet_bytes(in) : 0;
    snprintf(r.text, sizeof r.text, "%.255s", in ? "" : err.text);
    while (send(s->fd, &r, sizeof r, MSG_NOSIGNAL) == (ssize_t)sizeof r && in && recv(s->fd, &m, sizeof m, 0) == (ssize_t)sizeof m
           && m.order != ORDER_END) {
        memset(&r, 0, sizeof r);
        r.ok = order_do(s, in, &m, &r, &err);
        r.ended_ns = clock_ns();
        if (!r.ok)
            snprintf(r.text, sizeof r.text, "%.255s", err.text);
    }
    inlet_free(in);
    side_close(s);
}

/* ---- the trainer's process ---- */

static bool order_give(const struct side *s, struct order_msg m, struct error *err)
{
    return send(s->fd, &m, sizeof m, MSG_NOSIGNAL) == (ssize_t)sizeof m || error_set(err, ERR_CLOSED, "the producer's process is gone");
}

static bool reply_wait(const struct side *s, struct reply *r, struct error *err)
{
    if (recv(s->fd, r, sizeof *r, 0) != (ssize_t)sizeof *r)
        return error_set(err, ERR_CLOSED, "the producer's process is gone");
    return r->ok || error_set(err, ERR_INTERNAL, "the producer: %s", r->text);
}

/* Fill the weights with noise, whatever their size. */
static bool weights_fill(const struct side *s, struct error *err)
{
    size_t n = MIN(PATTERN_BYTES, s->size_bytes);
    uint64_t *pattern = host_new(s->dev, PATTERN_BYTES, "noise", err), x = 88172645463325252u;
    bool ok = pattern != NULL;
    for (size_t i = 0; ok && i < PATTERN_BYTES / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;    // Marsaglia's xorshift64
        pattern[i] = x;
    }
    for (size_t at = 0; ok && at < s->size_bytes; at += n)
        ok = mem_copy(s->dev, (char *)s->weights + at, pattern, MIN(n, s->size_bytes - at), COPY_H2D, err);
    ok = ok && device_sync(s->dev, err);
    if (pattern)
        host_free(s->dev, pattern);
    return ok;
}

/* Make another version of the weights: change some bytes in every 64 MiB. */
static bool weights_change(const struct side *s, int64_t version, struct error *err)
{
    for (size_t at = 0; at + sizeof version <= s->size_bytes; at += (size_t)64 << 20)
        if (!mem_copy(s->dev, (char *)s->weights + at, &version, sizeof version, COPY_H2D, err))
            return false;
    return device_sync(s->dev, err);
}

/* Wait until the outlet sees an expected event: a producer that waits, or a version that has arrived. */
static bool outlet_wait(struct outlet *o, int n_waiting, int64_t version, struct outlet_look *look, struct error *err)
{
    int64_t end = clock_ms() + WAIT_MS;
    do
        outlet_look(o, look);
    while ((version < 0 ? look->n_waiting != n_waiting || look->n_member == 0 : look->version != version) && clock_ms() < end);
    return clock_ms() <= end || error_set(err, ERR_TIMEOUT, "the producer has not taken part for %d s", WAIT_MS / 1000);
}

static bool hashes_equal(uint64_t a, uint64_t b, int64_t version, struct error *err)
{
    return a == b
           || error_set(err, ERR_DATA, "version %" PRId64 ": hash %016" PRIx64 " on the trainer's side, %016" PRIx64 " on the producer's",
                        version, a, b);
}

struct result {
    size_t held_bytes;    // of the producer's first device
    double direct[ROUNDS_MAX], staged[ROUNDS_MAX], take[ROUNDS_MAX], raw[ROUNDS_MAX];
};

static bool rounds_run(struct side *s, struct outlet *o, bool stages, int rounds, struct result *out, struct error *err)
{
    struct outlet_look look;
    struct reply r;
    int64_t version = 0;
    for (int k = -2; k < rounds; k++) {    // it waits for the version
        version++;
        if (!weights_change(s, version, err) || !order_give(s, (struct order_msg){ .order = ORDER_TAKE, .version = version }, err)
            || !outlet_wait(o, 1, -1, &look, err))
            return false;
        int64_t begun = clock_ns();
        if (!outlet_share(o, s->weights, s->handle, version, err) || !reply_wait(s, &r, err) || !outlet_withdraw(o, err)
            || !outlet_wait(o, 0, version, &look, err) || !hashes_equal(look.hash, r.hash, version, err))
            return false;
        if (k >= 0)
            out->direct[k] = (double)(r.ended_ns - begun) / 1e6;
    }
    for (int k = -1; stages && k < rounds; k++) {    // meanwhile it does something else
        version++;
        if (!weights_change(s, version, err) || !outlet_share(o, s->weights, s->handle, version, err)
            || !outlet_wait(o, 0, version, &look, err) || !order_give(s, (struct order_msg){ .order = ORDER_TAKE, .version = version }, err)
            || !reply_wait(s, &r, err) || !hashes_equal(look.hash, r.hash, version, err))
            return false;
        if (k >= 0) {
            out->staged[k] = look.ms;
            out->take[k] = (double)(r.ended_ns - r.begun_ns) / 1e6;
        }
    }
    uint64_t own;
    return weights_hash(s, &own, err) && order_give(s, (struct order_msg){ .order = ORDER_HASH }, err) && reply_wait(s, &r, err)
           && (r.hash == 0 || hashes_equal(own, r.hash, version, err));
}

static bool raw_run(struct side *s, int rounds, struct result *out, struct error *err)
{
    struct order_msg join = { .order = ORDER_JOIN };
    struct reply r;
    if (!comm_id_make(s->dev, &join.id, err) || !order_give(s, join, err) || !(s->raw = comm_new(s->dev, &join.id, 2, 0, err))
        || !comm_wait(s->raw, err) || !reply_wait(s, &r, err))
        return false;
    for (int k = -3; k < rounds; k++) {
        int64_t begun = clock_ns();
        if (!order_give(s, (struct order_msg){ .order = ORDER_RAW }, err) || !raw_broadcast(s, err))
            return false;
        int64_t ended = clock_ns();
        if (!reply_wait(s, &r, err))
            return false;
        if (k >= 0)
            out->raw[k] = (double)(MAX(ended, r.ended_ns) - begun) / 1e6;
    }
    return true;
}

static bool trainer_run(struct side *s, const char *device, const char *dir, enum weights_way way, size_t bucket_bytes, int n_slot,
                        int rounds, bool alone, struct result *out, struct error *err)
{
    bool ok = false;
    struct reply r;
    struct error none;
    struct outlet *o = NULL;
    TRY(side_open(s, device, n_slot == 0, err) && weights_fill(s, err) && reply_wait(s, &r, err));
    out->held_bytes = r.held_bytes;
    struct outlet_config c = {
        .dev = s->dev, .dir = dir, .way = way, .bundle = &s->bundle, .bucket_bytes = bucket_bytes, .n_slot = n_slot
    };
    TRY(o = outlet_new(&c, err));
    TRY(rounds_run(s, o, way == WAY_NCCL && alone && n_slot > 0, rounds, out, err));
    for (int k = 0; k < rounds; k++)
        out->raw[k] = NAN;
    if (alone && comm_available(s->dev, &none))
        TRY(raw_run(s, rounds, out, err));
    (void)order_give(s, (struct order_msg){ .order = ORDER_END }, &none);
    ok = true;
out:
    outlet_free(o);
    return ok;
}

/* "cuda:0,cuda:1" is the trainer's, and the rest. */
static const char *devices_split(const char *text, char first[32], struct error *err)
{
    const char *comma = strchr(text, ',');
    if (!comma || comma == text || comma - text > 31 || !comma[1] || text[strlen(text) - 1] == ',') {
        error_set(err, ERR_USAGE, "--devices is '%s'; it names the trainer's and the producer's, e.g. cuda:0,cuda:1", text);
        return NULL;
    }
    snprintf(first, 32, "%.*s", (int)(comma - text), text);
    return comma + 1;
}

bool bench_publish(int argc, char **argv, struct error *err)
{
    const char *shape = "starter", *devices = "cpu:0,cpu:1", *way_name = "nccl";
    int64_t rounds = 9, bucket_mib = 0, n_slot = 1;
    enum weights_way way;
    char first[32], dir[] = "/tmp/rollcall-publish-XXXXXX";
    struct cli_option options[] = {
        { "shape", NULL, CLI_STR, &shape, "NAME", "use as many bytes as this shape's weights in bf16, e.g. Qwen2.5-1.5B (starter)" },
        { "devices", NULL, CLI_STR, &devices, "LIST", "the trainer's and the producer's; more: slices on each (cpu:0,cpu:1)" },
        { "slots", NULL, CLI_I64, &n_slot, "N", "versions kept beside the weights; 0: the weights themselves are shared (1)" },
        { "way", NULL, CLI_STR, &way_name, "NAME", "nccl or copy (nccl; between CPUs both go through shared memory)" },
        { "bucket", NULL, CLI_I64, &bucket_mib, "MIB", "bucket size of a broadcast; 0: as in a run" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "publications timed; the median counts (9)" },
    };
    struct cli cli = { .command = "rollcall bench publish",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Sends weights from one device to another as in a run, compared with a bare broadcast.\n" };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (n_slot < 0 || n_slot > OUTLET_SLOT_MAX)
        return error_set(err, ERR_USAGE, "--slots must be 0 to %d", OUTLET_SLOT_MAX);
    if (rounds < 1 || rounds > ROUNDS_MAX || bucket_mib < 0 || bucket_mib > 1 << 20)
        return error_set(err, ERR_USAGE, "--rounds must be 1 to %d, --bucket 0 to %d", ROUNDS_MAX, 1 << 20);
    if (!weights_way_parse(way_name, &way) || way == WAY_FILES)
        return error_set(err, ERR_USAGE, "--way is '%s'; it may be nccl or copy", way_name);
    const struct model_config *c = config_shape(shape, err);
    int pair[2];
    const char *rest = c ? devices_split(devices, first, err) : NULL;
    if (!rest)
        return false;
    if (!mkdtemp(dir) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return error_errno(err, "cannot prepare two processes");
    struct side side = { .shape = c };
    pid_t pid = fork();    // before any device is opened
    if (pid < 0)
        return error_errno(err, "cannot start the producer's process");
    side.fd = pair[pid == 0];
    close(pair[pid != 0]);
    if (pid == 0) {
        producer_main(&side, rest, dir, way, n_slot > 0);
        _exit(0);
    }
    struct result result = { 0 };
    char path[64];
    bool alone = !strchr(rest, ',') && strcmp(rest, first) != 0;    // one producer's device, and another one
    bool ok = trainer_run(&side, first, dir, way, (size_t)bucket_mib << 20, (int)n_slot, (int)rounds, alone, &result, err);
    close(side.fd);
    double bytes = (double)side.size_bytes;
    side_close(&side);
    waitpid(pid, NULL, 0);
    snprintf(path, sizeof path, "%s/weights", dir);
    unlink(path);
    rmdir(dir);
    if (!ok)
        return false;
    double ms = bench_median(result.direct, (int)rounds), raw = bench_median(result.raw, (int)rounds);
    printf("{\"bench\":\"publish\",\"model\":\"%s\",\"way\":\"%s\",\"devices\":\"%s\",\"slots\":%" PRId64
           ",\"bytes\":%.0f,\"held_bytes\":%zu,\"ms\":%.3f,\"gb_per_s\":%.1f",
           shape, way_name, devices, n_slot, bytes, result.held_bytes, ms, bytes / ms * 1e-6);
    if (!isnan(raw))
        printf(",\"raw_ms\":%.3f,\"raw_gb_per_s\":%.1f,\"roofline\":%.3f", raw, bytes / raw * 1e-6, raw / ms);
    if (way == WAY_NCCL && alone && n_slot > 0)
        printf(",\"staged_ms\":%.3f,\"take_ms\":%.3f", bench_median(result.staged, (int)rounds), bench_median(result.take, (int)rounds));
    printf(",\"check\":\"hashes equal\"}\n");
    return true;
}
