/* Versions of the weights from one layout to another: from whole weights, in memory or in a file, and from a trainer's slices and stages, to
 * a model on one device and to teams of 2 and 4, to the bit; what is damaged is named; and nobody has more memory for it than the plan says. OPS_DEVICE names another first
 * device of the takers', such as cuda:0, GIVER_DEVICE the giver's.
 * tags: asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/file.h"
#include "protocol/settings/run_config.h"
#include "tests/unit/counted.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/publish/publication.h"

#define BASE .family = FAMILY_QWEN2, .n_layer = 3, .max_pos = 512, .rms_eps = 1e-6, .rope.theta = 1e4, .initializer_range = 0.3
#define MODE_DIR 0700
// clang-format off
static const struct shape {
    struct model_config c;
    const char *why;
} shapes[] = {
    { { BASE, .d_model = 96, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 384, .vocab = 333 }, "an odd vocabulary" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 2, .d_head = 32, .d_ff = 128, .vocab = 288, .tied = true, .fused_names = true },
      "fused tensors, and two of four share a head of keys and values" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 1, .d_head = 64, .d_ff = 208, .vocab = 100, .qk_norm = true, .qkv_bias = true, .o_bias = true,
        .mlp_bias = true }, "biases, norms of each head, and one head of keys and values" },
    { { BASE, .d_model = 96, .n_head = 8, .n_kv_head = 4, .d_head = 16, .d_ff = 192, .vocab = 100, .tied = true, .qk_norm = true, .qkv_bias = true,
        .o_bias = true, .mlp_bias = true }, "biases and norms of each head, in slices" },
};
// clang-format on
#define PARTS 4

static char run_dir[64] = "/tmp/slices-XXXXXX";
static struct device *taker[4], *giver;
static struct counted counted[2];

/* ---- models */
static void devices_open(void)
{
    const char *first = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", *other = getenv("GIVER_DEVICE");
    const char *colon = strchr(first, ':');
    struct error err;
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s:%d", (int)(colon - first), first, atoi(colon + 1) + i);
        if (!(taker[i] = device_new(name, 1, &err)))
            fail_msg("%s", err.text);
    }
    giver = device_new(other ? other : "cpu:4", 1, &err);
    assert_non_null(giver);
}

static void devices_close(void)
{
    for (int i = 0; i < 4; i++)
        device_free(taker[i]);
    device_free(giver);
}

static struct model *whole_make(const struct shape *s, uint64_t seed, struct device *dev)
{
    struct error err;
    struct model *m = model_new_random(&s->c, seed, dev, DT_BF16, &err);
    if (!m || !model_parts_set(m, PARTS, &err))
        fail_msg("%s: %s", s->why, err.text);
    return m;
}

/* To take versions, on n devices. */
static struct model *taking_make(const struct shape *s, int n)
{
    struct error err;
    struct model *m = n > 1 ? model_new_shape(&s->c, taker[0], DT_BF16, &err) : model_new_empty(&s->c, taker[0], DT_BF16, &err);
    if (!m || !model_parts_set(m, PARTS, &err) || !model_team(m, taker, n, &err))
        fail_msg("%s, %d devices: %s", s->why, n, err.text);
    return m;
}

/* m has the weights that whole_make draws from seed, cut as team_fill cuts them. */
static void weights_compare(const struct shape *s, const struct model *m, uint64_t seed, const char *what)
{
    struct error err;
    int n = model_n_device(m);
    struct model *want = whole_make(s, seed, taker[0]), *cut = taking_make(s, n);
    assert_true(model_weights_copy(cut, want, &err));
    for (int q = n - 1; q >= 0; q--) {
        uint64_t a, b;
        const struct model *x = n > 1 ? team_slice(m, q) : m, *y = n > 1 ? team_slice(cut, q) : cut;
        assert_true(device_enter(model_device(x), &err) && model_weights_hash(x, &a, &err) && model_weights_hash(y, &b, &err));
        if (a != b)
            fail_msg("%s: %s, part %d of %d", s->why, what, q, n);
    }
    model_free(cut);
    model_free(want);
}

struct pair {    // who gives and who takes; on CPUs both may be of one process
    struct publication *gives, *takes;
    struct model *from, *to;
};
static void pair_open(struct pair *p, const struct shape *s, enum weights_way way, int n_slot, int n_device)
{
    struct error err;
    p->from = whole_make(s, 0, giver);
    p->to = taking_make(s, n_device);
    struct publication_config g = { .model = p->from, .run_dir = run_dir, .name = "giver", .way = way, .gives = true, .n_slot = n_slot };
    struct publication_config t = { .model = p->to, .run_dir = run_dir, .name = "taker", .way = way, .n_slot = n_slot };
    if (!(p->gives = publication_new(&g, &err)) || !publication_model(p->gives, p->from, &err) || !(p->takes = publication_new(&t, &err)))
        fail_msg("%s", err.text);
}

static void pair_close(struct pair *p)
{
    publication_free(p->takes);
    publication_free(p->gives);
    model_free(p->to);
    model_free(p->from);
}

/* The giver's weights become those of this seed, which are shared under it as the version. */
static void version_make(struct pair *p, const struct shape *s, int64_t version)
{
    struct error err;
    struct model *other = whole_make(s, (uint64_t)version, giver);
    if (!publication_withdraw(p->gives, &err) || !model_weights_copy(p->from, other, &err)
        || !publication_share(p->gives, p->from, NULL, 1, version, &err))
        fail_msg("%s", err.text);
    model_free(other);
}

static void every_layout_takes_every_version(UNUSED void **state)
{
    struct error err;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        for (int n = 1; n <= 4; n *= 2)
            for (int n_slot = 0; n_slot < 3; n_slot += 2)
                for (int way = WAY_COPY; way <= WAY_NCCL; way++) {
                    struct pair p;
                    char what[64];
                    pair_open(&p, &shapes[i], (enum weights_way)way, n_slot, n);
                    for (int64_t v = 1; v < 4; v++) {
                        version_make(&p, &shapes[i], v);
                        if (!publication_take(p.takes, p.to, 1, v, &err))
                            fail_msg("%s", err.text);
                        snprintf(what, sizeof what, "%s, %d slots, version %d", weights_way_name((enum weights_way)way), n_slot, (int)v);
                        weights_compare(&shapes[i], p.to, (uint64_t)v, what);
                    }
                    if (n_slot > 0) {    // an older one, and what is not kept
                        assert_true(publication_take(p.takes, p.to, 1, 2, &err));
                        weights_compare(&shapes[i], p.to, 2, "an older version");
                    }
                    assert_false(publication_take(p.takes, p.to, 1, 1, &err));
                    assert_int_equal(err.code, ERR_NOT_FOUND);
                    weights_compare(&shapes[i], p.to, n_slot > 0 ? 2 : 3, "after a version that is not there");
                    pair_close(&p);
                }
}

/* What should not happen: the weights change while they are shared. Then some tensors are of one version and some of another. */
static void a_mixture_of_versions_is_not_taken(UNUSED void **state)
{
    struct error err;
    for (int n = 1; n <= 4; n *= 2) {
        struct pair p;
        size_t size;
        char text[160];
        pair_open(&p, &shapes[0], WAY_COPY, 0, n);
        version_make(&p, &shapes[0], 1);
        struct model *other = whole_make(&shapes[0], 2, giver);
        const struct tensor *t = model_tensor(other, model_n_tensor(other) / 2);
        while (t->n_dim < 2)    // norms are 1 in all versions
            t++;
        char *to = model_weights(p.from, &size), *from = model_weights(other, &size);
        assert_true(mem_copy(giver, to + t->offset * 2, from + t->offset * 2, size - (size_t)t->offset * 2, COPY_D2D, &err)
                    && device_sync(giver, &err));
        assert_false(publication_take(p.takes, p.to, 1, 1, &err));
        assert_int_equal(err.code, ERR_DATA);
        snprintf(text, sizeof text, "'%s' of version 1 has arrived with hash", t->name);    // the first that differs
        if (!strstr(err.text, text))
            fail_msg("%s", err.text);
        version_make(&p, &shapes[0], 3);
        assert_true(publication_take(p.takes, p.to, 1, 3, &err));
        weights_compare(&shapes[0], p.to, 3, "after a mixture");
        model_free(other);
        pair_close(&p);
    }
}

/* A trainer that samples on several devices itself, behind its own steps. */
static void a_giver_takes_older_versions_into_its_own_slices(UNUSED void **state)
{
    struct error err;
    struct pair p;
    const struct shape *s = &shapes[0];
    struct device *dev[2] = { giver, taker[1] };
    pair_open(&p, s, WAY_COPY, 2, 1);
    struct model *own = model_shape_like(p.from, &err);
    assert_true(own && model_team(own, dev, 2, &err));
    version_make(&p, s, 1);
    version_make(&p, s, 2);
    for (int64_t v = 1; v < 3; v++) {
        struct model *want = whole_make(s, (uint64_t)v, giver), *cut = model_shape_like(want, &err);
        assert_true(publication_take(p.gives, own, 1, v, &err));
        assert_true(cut && model_team(cut, dev, 2, &err) && model_weights_copy(cut, want, &err));
        for (int q = 1; q >= 0; q--) {
            uint64_t a, b;
            assert_true(device_enter(dev[q], &err) && model_weights_hash(team_slice(own, q), &a, &err)
                        && model_weights_hash(team_slice(cut, q), &b, &err));
            assert_true(a == b);
        }
        model_free(cut);
        model_free(want);
    }
    model_free(own);
    pair_close(&p);
}

static void files_are_read_into_every_layout_and_damage_is_named(UNUSED void **state)
{
    struct error err = { 0 };
    char path[128];
    snprintf(path, sizeof path, "%s/weights", run_dir);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        const struct shape *s = &shapes[i];
        struct model *from = whole_make(s, 5, giver);
        for (int n = 1; n <= 4; n *= 2) {
            struct model *to = taking_make(s, n);
            assert_true(weights_file_write(from, NULL, path, &err));
            if (!weights_file_read(to, path, 7, &err))
                fail_msg("%s", err.text);
            weights_compare(s, to, 5, "from a file");
            for (int64_t t = 0; t < model_n_tensor(from); t += 5) {    // a bit of its last element
                const struct tensor *x = model_tensor(from, t);
                char text[160];
                FILE *f = fopen(path, "r+");
                long at = (long)((x->offset + x->n_elem) * 2 - 1);
                assert_true(f && fseek(f, at, SEEK_SET) == 0);
                int byte = fgetc(f);
                assert_true(fseek(f, at, SEEK_SET) == 0 && fputc(byte ^ 4, f) != EOF && fclose(f) == 0);
                assert_false(weights_file_read(to, path, 7, &err));
                assert_int_equal(err.code, ERR_DATA);
                snprintf(text, sizeof text, "'%s' of version 7 has arrived with hash", x->name);
                if (!strstr(err.text, text) || !strstr(err.text, path))
                    fail_msg("%s", err.text);
                assert_true(weights_file_write(from, NULL, path, &err));
            }
            struct stat st;
            assert_true(stat(path, &st) == 0 && truncate(path, st.st_size - 8) == 0);
            assert_false(weights_file_read(to, path, 7, &err));
            assert_int_equal(err.code, ERR_DATA);
            assert_true(truncate(path, 3) == 0);
            assert_false(weights_file_read(to, path, 7, &err));
            assert_true(unlink(path) == 0);
            assert_false(weights_file_read(to, path, 7, &err));
            assert_int_equal(err.code, ERR_NOT_FOUND);
            model_free(to);
        }
        model_free(from);
    }
}

/* ---- weights that lie in several places */
#define SCATTERED 3
struct scattered {
    struct extent_part part[SCATTERED];    // device, owned
    struct extent *at;
    struct extents all;
};

/* A copy of m's weights in runs of up to `run` bytes, dealt to the parts in turn, the last first in each part's memory. */
static void scatter(struct scattered *s, const struct model *m, size_t run)
{
    struct error err;
    size_t size, end[SCATTERED];
    const char *from = model_weights(m, &size);
    int64_t n = (int64_t)((size + run - 1) / run);
    *s = (struct scattered){ 0 };
    s->at = calloc((size_t)n, sizeof *s->at);
    assert_non_null(s->at);
    for (int k = 0; k < SCATTERED; k++) {
        struct mem_handle h;
        s->part[k].size_bytes = end[k] = ((size_t)n + SCATTERED - 1) / SCATTERED * run;
        s->part[k].mem = mem_share_new(giver, end[k], "scattered weights", &h, &err);
        assert_non_null(s->part[k].mem);
        s->part[k].handle = h;
    }
    for (int64_t i = 0; i < n; i++) {
        int k = (int)(i % SCATTERED);
        size_t at = (size_t)i * run, bytes = MIN(run, size - at);
        end[k] -= bytes;
        s->at[i] = (struct extent){ .of = area_run(at, bytes), .part = k, .at = end[k] };
        assert_true(mem_copy(giver, (char *)s->part[k].mem + end[k], from + at, bytes, COPY_D2D, &err));
    }
    assert_true(device_sync(giver, &err));
    s->all = (struct extents){ n, s->at, SCATTERED, s->part };
}

static void scattered_free(struct scattered *s)
{
    for (int k = 0; k < SCATTERED; k++)
        mem_share_free(giver, (void *)s->part[k].mem, s->part[k].size_bytes, &s->part[k].handle);
    free(s->at);
}

static void files_compare(const char *a, const char *b, const char *why)
{
    struct error err;
    struct file_map x, y;
    assert_true(file_map_shared(&x, a, &err) && file_map_shared(&y, b, &err));
    if (x.size_bytes != y.size_bytes || memcmp(x.data, y.data, x.size_bytes) != 0)
        fail_msg("%s: the files differ", why);
    file_map_close(&x);
    file_map_close(&y);
}

/* Runs that begin and end inside tensors: so few that tensors share one, and so many that a tensor has more than hashes fit at once. */
static void weights_in_several_places_are_shared_as_weights_in_one(UNUSED void **state)
{
    struct error err;
    char one[128], several[128];
    const size_t runs[] = { 64, 1000 * 8, 1 << 20 };
    snprintf(one, sizeof one, "%s/one", run_dir);
    snprintf(several, sizeof several, "%s/several", run_dir);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        for (size_t k = 0; k < ARRAY_SIZE(runs); k++) {
            struct model *from = whole_make(&shapes[i], 7, giver), *shape = model_shape_like(from, &err);
            struct scattered s;
            scatter(&s, from, runs[k]);
            assert_true(shape && weights_file_write(from, NULL, one, &err) && weights_file_write(shape, &s.all, several, &err));
            files_compare(one, several, shapes[i].why);    // hashes, too
            for (int k_way = 0; k_way < 3; k_way++)
                for (int n = 1; n <= 4; n *= 2) {
                    struct pair p;
                    bool in_place = k_way == 2;    // and read where they are
                    pair_open(&p, &shapes[i], k_way == 1 ? WAY_NCCL : WAY_COPY, in_place ? 0 : 1, n);
                    assert_int_equal(publication_in_place(p.gives), in_place);
                    if (!publication_share(p.gives, shape, &s.all, 1, 7, &err) || !publication_take(p.takes, p.to, 1, 7, &err)
                        || !publication_withdraw(p.gives, &err))
                        fail_msg("%s", err.text);
                    weights_compare(&shapes[i], p.to, 7, "from several places");
                    pair_close(&p);
                }
            scattered_free(&s);
            model_free(shape);
            model_free(from);
        }
    assert_true(unlink(one) == 0 && unlink(several) == 0);
}

/* ---- weights in the slices and stages of a trainer's devices */
static const struct layout {
    int n_stage, n_slice;
} layouts[] = { { 1, 2 }, { 1, 4 }, { 2, 1 }, { 2, 2 } };

/* The model that whole_make makes on the giver, cut over it and other devices, in memory that others may open. NULL: it cannot be cut so. */
static struct model *cut_make(const struct shape *s, uint64_t seed, const struct layout *l)
{
    struct error err;
    struct device *dev[4] = { giver, taker[1], taker[2], taker[3] };
    if (!team_train_check(&s->c, l->n_slice, PARTS, &err))
        return NULL;
    struct model *whole = whole_make(s, seed, giver);
    struct model *m = l->n_stage > 1 ? model_staged_open(whole, dev, l->n_stage, l->n_slice, &err)
                                     : model_sliced_open(whole, dev, l->n_slice, &err);
    if (!m || !model_slices_share(m, &err) || !model_weights_take(m, &err) || !device_sync(giver, &err))
        fail_msg("%s in %d stages of %d: %s", s->why, l->n_stage, l->n_slice, err.text);
    model_free(whole);
    return m;
}

/* m's weights become those of this seed. */
static void cut_refill(const struct shape *s, struct model *m, uint64_t seed)
{
    struct error err;
    struct model *other = whole_make(s, seed, giver);
    assert_true(model_weights_copy(m, other, &err) && device_sync(giver, &err));
    model_free(other);
}

static void weights_in_slices_are_shared_as_weights_in_one(UNUSED void **state)
{
    struct error err;
    char one[128], several[128];
    int n_tried = 0;
    snprintf(one, sizeof one, "%s/one", run_dir);
    snprintf(several, sizeof several, "%s/several", run_dir);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        for (size_t k = 0; k < ARRAY_SIZE(layouts); k++) {
            const struct shape *s = &shapes[i];
            struct model *m = cut_make(s, 7, &layouts[k]), *whole = whole_make(s, 7, giver), *shape = model_shape_like(whole, &err);
            struct extent_table t = { 0 };
            char what[96];
            assert_non_null(shape);
            for (int k_way = 0; m && k_way < 4; k_way++)
                for (int n = 1; n <= 4; n *= 2) {
                    enum weights_way way = k_way % 2 ? WAY_NCCL : WAY_COPY;
                    int n_slot = k_way / 2;
                    struct pair p;
                    pair_open(&p, s, way, n_slot, n);
                    for (int64_t v = 1; v < 4; v++) {    // of each the slices are where they were, and nothing else
                        if (!publication_withdraw(p.gives, &err))
                            fail_msg("%s", err.text);
                        cut_refill(s, m, (uint64_t)v);
                        if (t.n == 0)
                            assert_true(extent_table_of_model(&t, m, &err));
                        const struct extents from = extent_table_all(&t);
                        if (!publication_share(p.gives, shape, &from, 1, v, &err) || !publication_take(p.takes, p.to, 1, v, &err))
                            fail_msg("%s", err.text);
                        snprintf(what, sizeof what, "%d stages of %d, %s, %d slots, version %d", layouts[k].n_stage, layouts[k].n_slice,
                                 weights_way_name(way), n_slot, (int)v);
                        weights_compare(s, p.to, (uint64_t)v, what);
                    }
                    assert_true(publication_withdraw(p.gives, &err));
                    assert_true((publication_take(p.takes, p.to, 1, 3, &err)) == (n_slot > 0));
                    pair_close(&p);
                    n_tried++;
                }
            if (m) {
                cut_refill(s, m, 7);
                const struct extents from = extent_table_all(&t);
                assert_true(weights_file_write(whole, NULL, one, &err) && weights_file_write(shape, &from, several, &err));
                files_compare(one, several, s->why);    // hashes and gaps, too
            }
            extent_table_release(&t);
            model_free(m);
            model_free(whole);
            model_free(shape);
        }
    assert_int_equal(n_tried, (4 + 3 + 1 + 4) * 4 * 3);    // two heads of keys and values are cut in two, one is not
    assert_true(unlink(one) == 0 && unlink(several) == 0);
}

/* A window of the flat order that begins or ends anywhere has the bytes that it has in one piece. */
static void any_window_of_slices_is_that_of_the_whole(UNUSED void **state)
{
    struct error err;
    const struct shape *s = &shapes[0];
    struct model *whole = whole_make(s, 3, giver);
    struct bundle b;
    size_t size;
    assert_true(bundle_of_model(&b, whole, &err));
    const char *want = model_weights(whole, &size);
    const size_t lengths[] = { 1, 2 * 96 - 1, 5000, 100003 };
    char *got = mem_new(giver, lengths[3], "a window", &err), *host = malloc(lengths[3]), *host_want = malloc(lengths[3]);
    assert_true(got && host && host_want);
    for (size_t k = 0; k < ARRAY_SIZE(layouts); k++) {
        struct model *m = cut_make(s, 3, &layouts[k]);
        struct extent_table t = { 0 };
        assert_true(m && extent_table_of_model(&t, m, &err));
        const struct extents from = extent_table_all(&t);
        for (size_t l = 0; l < ARRAY_SIZE(lengths); l++)
            for (size_t at = 0; at < size; at += size / 97 + l) {
                size_t n = MIN(lengths[l], size - at);
                assert_true(OP(giver, &err, mem_fill, .y = got, .size_bytes = lengths[3], .byte = 0x5a));
                assert_true(extents_gather(&b, &from, giver, at, n, got, &err) && mem_copy(giver, host, got, n, COPY_D2H, &err)
                            && mem_copy(giver, host_want, want + at, n, COPY_D2H, &err) && device_sync(giver, &err));
                if (memcmp(host, host_want, n) != 0)
                    fail_msg("%d stages of %d: %zu bytes from %zu on", layouts[k].n_stage, layouts[k].n_slice, n, at);
            }
        extent_table_release(&t);
        model_free(m);
    }
    mem_free(giver, got);
    free(host);
    free(host_want);
    bundle_release(&b);
    model_free(whole);
}

/* What a producer refuses before it reads anything, and a table that its hashes refuse. */
static void a_table_that_is_not_a_version_is_refused(UNUSED void **state)
{
    struct error err;
    const struct shape *s = &shapes[0];
    struct model *m = cut_make(s, 3, &layouts[1]), *shape = model_shape_like(m, &err);
    struct extent_table t = { 0 };
    struct bundle b;
    assert_true(shape && bundle_of_model(&b, m, &err) && extent_table_of_model(&t, m, &err));
    struct extents x = extent_table_all(&t);
    int64_t rows = 0, other = 0;
    while (t.at[rows].of.n_row == 1)
        rows++;
    while (t.at[other].part != 1)
        other++;
    struct extent keep[2] = { t.at[rows], t.at[other] };
    assert_true(extents_are_whole(&b, &x));
    x.n--;
    assert_false(extents_are_whole(&b, &x));    // one is missing
    x.n++;
    x.n_part--;
    assert_false(extents_are_whole(&b, &x));    // and so is a part
    x.n_part++;
    static const struct {
        size_t offset;
        int64_t add;
        const char *why;
    } wrong[] = {
        { offsetof(struct extent, of.from), 1 << 30, "outside" },
        { offsetof(struct extent, of.from), -192, "before an earlier one" },
        { offsetof(struct extent, of.row_bytes), INT64_MAX, "longer than all" },
        { offsetof(struct extent, of.row_bytes), 2, "twice the same" },
        { offsetof(struct extent, of.from), 2 * 96, "over a row's end" },
        { offsetof(struct extent, of.ld), -96, "rows of another length" },
        { offsetof(struct extent, of.ld), INT64_MAX, "rows far away" },
        { offsetof(struct extent, of.n_row), 1, "a row of the next tensor" },
        { offsetof(struct extent, of.n_row), INT64_MAX / 2, "rows without end" },
        { offsetof(struct extent, of.n_row), -1000000, "less than no rows" },
        { offsetof(struct extent, part), 100, "a part that there is not" },
        { offsetof(struct extent, part), -100, "another one" },
        { offsetof(struct extent, at), INT64_MAX, "outside its part" },
        { offsetof(struct extent, at), -1000000000, "before it" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        int64_t *field = (int64_t *)((char *)&t.at[rows] + wrong[i].offset), is = *field;
        *field = (int64_t)((uint64_t)is + (uint64_t)wrong[i].add);
        if (extents_are_whole(&b, &x))
            fail_msg("%s is taken", wrong[i].why);
        *field = is;
    }
    assert_true(extents_are_whole(&b, &x) && memcmp(&keep[0], &t.at[rows], sizeof keep[0]) == 0);
    for (int n = 1; n <= 4; n *= 2) {    // as long as it should be, but from another place
        struct pair p;
        pair_open(&p, s, WAY_COPY, 0, n);
        assert_true(publication_share(p.gives, shape, &x, 1, 1, &err));
        t.at[other].at += 64;
        assert_false(publication_take(p.takes, p.to, 1, 1, &err));
        assert_int_equal(err.code, ERR_DATA);
        t.at[other] = keep[1];
        assert_true(publication_take(p.takes, p.to, 1, 1, &err));
        weights_compare(s, p.to, 3, "after a wrong table");
        assert_true(publication_withdraw(p.gives, &err));
        pair_close(&p);
    }
    extent_table_release(&t);
    bundle_release(&b);
    model_free(shape);
    model_free(m);
}

/* ---- memory */
#define HASHES_MAX ((size_t)16 << 10)    // three words for each of these models' tensors
static void config_make(struct run_config *c, const char *model, const char *way, int n_behind, int n_device)
{
    run_config_init(c);
    snprintf(c->model, sizeof c->model, "%s", model);
    snprintf(c->weights, sizeof c->weights, "%s", way);
    snprintf(c->placement, sizeof c->placement, "apart");
    snprintf(c->dtype, sizeof c->dtype, "bf16");
    c->beta = 0;
    c->num_trainers = c->num_inferencer = 1;
    c->producer_tensor_parallel_size = n_device;
    c->n_behind = n_behind;
    snprintf(c->fill_gap, sizeof c->fill_gap, "off");
}

/* From the first version on: what loads has been freed. */
static void nobody_has_more_memory_than_the_plan_says(UNUSED void **state)
{
    struct error err;
    char model[128];
    const struct shape big = {
        { BASE, .d_model = 256, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 1024, .vocab = 4096, .qkv_bias = true }, "some MB"
    };
    struct run_config *c = malloc(sizeof *c);
    snprintf(model, sizeof model, "%s/model", run_dir);
    assert_int_equal(mkdir(model, MODE_DIR), 0);
    struct model *saved = whole_make(&big, 1, giver);
    size_t size = model_weight_bytes(saved);
    assert_true(size > 50 * HASHES_MAX && model_save(saved, model, &err));
    model_free(saved);
    for (int n = 1; n <= 4; n *= 2)
        for (int n_behind = 0; n_behind < 3; n_behind += 2)
            for (int way = WAY_COPY; way <= WAY_NCCL; way++) {
                struct run_room gives, takes;
                struct pair p;
                config_make(c, model, weights_way_name((enum weights_way)way), n_behind, n);
                if (!run_room_plan(&gives, c, &(struct run_part){ .rank = 0, .producer = -1, .helps = -1 }, giver, NULL, &err)
                    || !run_room_plan(&takes, c, &(struct run_part){ .rank = -1, .producer = 0, .helps = -1 }, taker[0], NULL, &err))
                    fail_msg("%s", err.text);
                count_begin(&counted[0], giver);
                count_begin(&counted[1], taker[0]);
                pair_open(&p, &big, (enum weights_way)way, run_versions_kept(c), n);
                counted[0].most = counted[0].now;    // not what moved when it was loaded
                for (int64_t v = 1; v < 4; v++) {
                    if (!publication_withdraw(p.gives, &err) || !publication_share(p.gives, p.from, NULL, 1, v, &err)
                        || !publication_take(p.takes, p.to, 1, v, &err))
                        fail_msg("%s", err.text);
                }
                size_t slots = size * (size_t)n_behind, staged = way == WAY_NCCL && n == 1 && n_behind > 0 ? size : 0;
                size_t held = n > 1 ? model_slice_bytes(p.to, n) : size;
                assert_true(gives.publication.kept == slots && takes.publication.held == held && takes.publication.staged == staged);
                assert_int_equal(gives.plan.weights, size + slots);
                assert_int_equal(takes.plan.weights, held + staged);
                assert_in_range(counted[0].most, gives.plan.weights, gives.plan.weights + HASHES_MAX);
                assert_in_range(counted[1].most, takes.plan.weights, takes.plan.weights + HASHES_MAX);
                pair_close(&p);
                count_end(&counted[1]);
                count_end(&counted[0]);
            }
    free(c);
}

/* A trainer in slices or stages that gives weights: beside its own part the first device has the versions that are kept, or while a file is
 * written a stage; the other devices have nothing else. */
static void who_gives_out_of_slices_has_nothing_whole_for_it(UNUSED void **state)
{
    struct error err;
    char model[128], file[128];
    const struct shape big = { { BASE, .d_model = 512, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 2048, .vocab = 16384,
                                 .tied = true, .qkv_bias = true },
                               "more than two stages" };
    struct run_config *c = malloc(sizeof *c);
    snprintf(model, sizeof model, "%s/model-of-slices", run_dir);
    snprintf(file, sizeof file, "%s/file", run_dir);
    assert_int_equal(mkdir(model, MODE_DIR), 0);
    struct model *whole = whole_make(&big, 1, giver), *shape = model_shape_like(whole, &err);
    size_t size = model_weight_bytes(whole);
    assert_true(shape && size > 2 * BUNDLE_STAGE && model_save(whole, model, &err));
    model_free(whole);
    for (size_t k = 0; k < ARRAY_SIZE(layouts); k++)
        for (int n_behind = 0; n_behind < 2; n_behind++) {
            const struct layout *l = &layouts[k];
            struct run_room room;
            struct extent_table t = { 0 };
            config_make(c, model, "copy", n_behind, 1);
            c->tensor_parallel_size = l->n_slice;
            c->pipeline_parallel_size = l->n_stage;
            if (!run_room_plan(&room, c, &(struct run_part){ .rank = 0, .producer = -1, .helps = -1 }, giver, NULL, &err))
                fail_msg("%s", err.text);
            count_begin(&counted[0], giver);
            count_begin(&counted[1], taker[1]);
            struct model *m = cut_make(&big, 1, l);
            struct publication_config g = {
                .model = shape, .run_dir = run_dir, .name = "giver", .way = WAY_COPY, .gives = true, .n_slot = n_behind
            };
            struct publication *gives = publication_new(&g, &err);
            assert_true(gives && extent_table_of_model(&t, m, &err));
            const struct extents from = extent_table_all(&t);
            size_t own = model_held_bytes(team_slice(m, 0)), other = model_held_bytes(team_slice(m, 1));
            counted[0].most = counted[0].now;    // not what it was cut out of
            counted[1].most = counted[1].now;
            assert_int_equal(room.plan.weights, own + (size_t)n_behind * size);
            assert_true(own < size * 3 / 4);
            for (int64_t v = 1; v < 3; v++)
                if (!publication_withdraw(gives, &err) || !publication_share(gives, shape, &from, 1, v, &err))
                    fail_msg("%s", err.text);
            assert_in_range(counted[0].most, room.plan.weights, room.plan.weights + HASHES_MAX);
            assert_true(weights_file_write(shape, &from, file, &err));
            assert_in_range(counted[0].most, room.plan.weights, room.plan.weights + BUNDLE_STAGE + HASHES_MAX);
            assert_in_range(counted[1].most, other, other + HASHES_MAX);
            publication_free(gives);
            extent_table_release(&t);
            model_free(m);
            count_end(&counted[1]);
            count_end(&counted[0]);
        }
    assert_int_equal(unlink(file), 0);
    model_free(shape);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_takes_every_version),
        cmocka_unit_test(a_mixture_of_versions_is_not_taken),
        cmocka_unit_test(a_giver_takes_older_versions_into_its_own_slices),
        cmocka_unit_test(files_are_read_into_every_layout_and_damage_is_named),
        cmocka_unit_test(weights_in_several_places_are_shared_as_weights_in_one),
        cmocka_unit_test(weights_in_slices_are_shared_as_weights_in_one),
        cmocka_unit_test(any_window_of_slices_is_that_of_the_whole),
        cmocka_unit_test(a_table_that_is_not_a_version_is_refused),
        cmocka_unit_test(nobody_has_more_memory_than_the_plan_says),
        cmocka_unit_test(who_gives_out_of_slices_has_nothing_whole_for_it),
    };
    char path[128];
    if (!mkdtemp(run_dir))
        return 1;
    snprintf(path, sizeof path, "%s/sock", run_dir);
    if (mkdir(path, MODE_DIR) != 0)
        return 1;
    devices_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    devices_close();
    snprintf(path, sizeof path, "rm -r '%s'", run_dir);
    return system(path) != 0 || failed ? 1 : 0;
}
