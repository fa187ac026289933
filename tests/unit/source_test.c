/* Weights that stay in files or in a seed until it is known what each device has of them: the whole, shards, slices, stages and shards of
 * slices get the bytes that they would get from whole weights, and no device ever has more memory than for its part, the first one a piece
 * besides. On CPUs, where nothing but weights takes memory that is counted: on a GPU the choice of products does, too.
 * tags: asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "kernels/collective/collective.h"
#include "tests/unit/counted.h"
#include "tests/unit/folder.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"

#define SEED 7
#define PARTS 4
#define DEVICES 4
// layers enough that a half and a piece are less than the whole, in pieces of more than one block of shards (SUMSQ_BLOCK)
#define BASE .n_layer = 8, .max_pos = 512, .rms_eps = 1e-6, .rope.theta = 1e4, .initializer_range = 0.3, .bos = -1
// clang-format off
static const struct shape {
    struct model_config c;
    const char *why;
} shapes[] = {
    { { BASE, .family = FAMILY_QWEN2, .d_model = 64, .n_head = 8, .n_kv_head = 4, .d_head = 16, .d_ff = 192, .vocab = 288, .tied = true,
        .qkv_bias = true }, "biases, and a head that is the embedding" },
    { { BASE, .family = FAMILY_LLAMA, .d_model = 96, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 384, .vocab = 333 },
      "an odd vocabulary, and gaps behind its rows" },
    { { BASE, .family = FAMILY_QWEN3, .d_model = 64, .n_head = 4, .n_kv_head = 4, .d_head = 32, .d_ff = 256, .vocab = 101, .qk_norm = true },
      "norms of each head" },
};
// clang-format on

static struct device *devices[DEVICES];
static struct counted counted[DEVICES];

static void devices_open(void)
{
    struct error err;
    for (int i = 0; i < DEVICES; i++) {
        char name[32];
        snprintf(name, sizeof name, "cpu:%d", i);
        if (!(devices[i] = device_new(name, 1, &err)))
            fail_msg("%s", err.text);
    }
}

static void devices_close(void)
{
    for (int i = 0; i < DEVICES; i++)
        device_free(devices[i]);
}

static void counts_begin(void)
{
    for (int i = 0; i < DEVICES; i++)
        count_begin(&counted[i], devices[i]);
}

static void counts_end(void)
{
    for (int i = 0; i < DEVICES; i++)
        count_end(&counted[i]);
}

/* Bytes of the device's memory, for free(). */
static char *bytes_of(struct device *dev, const void *p, size_t size)
{
    struct error err;
    char *out = malloc(size);
    assert_non_null(out);
    if (!device_enter(dev, &err) || !mem_copy(dev, out, p, size, COPY_D2H, &err) || !device_sync(dev, &err)
        || !device_enter(devices[0], &err))
        fail_msg("%s", err.text);
    return out;
}

/* What a case is about. */
struct tried {
    const struct shape *shape;
    enum dtype dtype;
    const char *dir;        // of the files; NULL: drawn from SEED
    struct model *whole;    // the same weights
    char *want;             // (model_weight_bytes) and on the host
};

static struct model *source_open(const struct tried *t)
{
    struct error err;
    struct model *m = t->dir ? model_files_open(t->dir, devices[0], t->dtype, &err)
                             : model_random_open(&t->shape->c, SEED, devices[0], t->dtype, &err);
    if (!m || !model_parts_set(m, PARTS, &err))
        fail_msg("%s: %s", t->shape->why, err.text);
    assert_true(model_is_elsewhere(m) && !model_is_whole(m) && !model_keeps_shards(m) && model_held_bytes(m) == 0);
    return m;
}

static size_t longest_bytes(const struct model *m)
{
    int64_t most = 0, first;
    for (int p = 0; p < model_n_piece(m); p++)
        most = MAX(most, model_piece(m, p, &first));
    return (size_t)most * dtype_size(model_dtype(m));
}

/* Run fn for every shape, in both types, out of files and out of a seed. */
static void all_try(struct folder *f, void (*fn)(const struct tried *t))
{
    devices_open();
    for (size_t i = 0; i < ARRAY_SIZE(shapes) * 4; i++) {
        struct error err;
        char dir[128];
        size_t size;
        struct tried t = { .shape = &shapes[i / 4], .dtype = i & 1 ? DT_BF16 : DT_F32, .dir = i & 2 ? dir : NULL };
        t.whole = model_new_random(&t.shape->c, SEED, devices[0], t.dtype, &err);
        if (!t.whole || !model_parts_set(t.whole, PARTS, &err))
            fail_msg("%s", err.text);
        const void *weights = model_weights(t.whole, &size);
        t.want = bytes_of(devices[0], weights, size);
        snprintf(dir, sizeof dir, "%s/%zu", f->path, i);
        if (t.dir && (mkdir(dir, 0700) != 0 || !model_save(t.whole, dir, &err)))
            fail_msg("%s", err.text);
        fn(&t);
        free(t.want);
        model_free(t.whole);
    }
    devices_close();
}

/* Rank r keeps its shards of the weights that are at `want` on the host. */
static void shards_compare(const struct model *m, const char *want, int n_rank, int r, const char *why)
{
    size_t e = dtype_size(model_dtype(m)), size, at = 0;
    const struct mem_handle *h;
    const char *kept = model_kept(m, &size, &h);
    char *got = bytes_of(model_device(m), kept, size);
    for (int p = 0; p < model_n_piece(m); p++) {
        int64_t first, own, n = collective_shard(model_piece(m, p, &first), n_rank, r, &own);
        if (memcmp(got + at, want + (size_t)(first + own) * e, (size_t)n * e) != 0)
            fail_msg("%s: rank %d of %d has another shard of piece %d", why, r, n_rank, p);
        at += (size_t)n * e;
    }
    for (; at < size; at++)
        assert_int_equal(got[at], 0);
    free(got);
}

static struct trainer_settings settings_of(int n_rank, int rank, int zero)
{
    struct trainer_settings s = TRAINER_SETTINGS_DEFAULT;
    s.n_rank = n_rank;
    s.rank = rank;
    s.zero_stage = zero;
    return s;
}

/* ---- on one device */
static void whole_compare(const struct tried *t, struct model *m)
{
    size_t size;
    assert_true(model_is_whole(m) && !model_is_elsewhere(m));
    assert_int_equal(model_held_bytes(m), model_weight_bytes(m));
    assert_int_equal(counted[0].most, model_weight_bytes(m));
    const void *weights = model_weights(m, &size);
    char *got = bytes_of(devices[0], weights, size);
    if (memcmp(got, t->want, size) != 0)
        fail_msg("%s: other weights than a model that is whole at once", t->shape->why);
    free(got);
}

static void one_device_try(const struct tried *t)
{
    struct error err;
    for (int zero = 0; zero < 3; zero++) {
        counts_begin();
        struct model *m = source_open(t);
        struct trainer_settings s = settings_of(zero > 0 ? 2 : 1, 0, zero);
        devices[0]->host_memory = devices[0]->host_memory && zero != 2;    // through buffers, as on a GPU
        if (!trainer_weights_place(m, &s, &err))
            fail_msg("%s", err.text);
        devices[0]->host_memory = devices[0]->kind != DEVICE_CUDA;
        whole_compare(t, m);
        model_free(m);
        counts_end();
    }
    for (int r = 0; r < 3; r++)
        for (int like = 0; like < 2; like++) {
            counts_begin();
            struct model *m = like ? model_like_open(t->whole, &err) : source_open(t);
            struct trainer_settings s = settings_of(3, r, 3);
            size_t will = trainer_weight_bytes(m, &s), kept, places = model_kept_bytes(m, 0);
            const struct mem_handle *h;
            if (!trainer_weights_place(m, &s, &err))
                fail_msg("%s", err.text);
            assert_true(model_keeps_shards(m) && !model_is_elsewhere(m));
            assert_int_equal(model_held_bytes(m), will);
            (void)model_kept(m, &kept, &h);
            assert_int_equal(counted[0].most, kept + MAX(places, longest_bytes(m)));
            assert_true(counted[0].most < model_weight_bytes(m));
            shards_compare(m, t->want, 3, r, t->shape->why);
            model_free(m);
            counts_end();
        }
}

static void one_device_has_the_whole_or_its_shards_and_a_piece(void **state)
{
    all_try(*state, one_device_try);
}

/* ---- on several */
/* Device q's slice or stage of the whole, on the host, for free(). */
static char *slice_want(const struct tried *t, const struct model *m, int q)
{
    const struct model *s = team_slice(m, q);
    size_t e = dtype_size(t->dtype);
    struct slice_block block[SLICE_BLOCK_MAX];
    char *out = calloc((size_t)model_n_flat(s), e);
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        int n = slice_blocks(m, s, i, model_n_device(m), q, block);
        for (int b = 0; b < n; b++)
            for (int64_t row = 0; row < block[b].n_row; row++)
                memcpy(out + (size_t)(block[b].to + row * block[b].n_col) * e, t->want + (size_t)(block[b].from + row * block[b].ld) * e,
                       (size_t)block[b].n_col * e);
    }
    return out;
}

/* Each device has its part, and has had no more; the first one a piece besides. */
static void parts_compare(const struct tried *t, struct model *m, int n_rank, int rank, int zero, const char *how)
{
    struct trainer_settings set = settings_of(n_rank, rank, zero);
    size_t size, longest = longest_bytes(m);
    assert_true(model_is_sliced(m) && !model_is_elsewhere(m));
    for (int q = 0; q < model_n_device(m); q++) {
        struct model *s = team_slice(m, q);
        char *want = slice_want(t, m, q);
        size_t own = trainer_weight_bytes(s, &set);
        assert_int_equal(model_held_bytes(s), own);
        assert_int_equal(counted[q].now, own);
        assert_int_equal(counted[q].most, own + (q == 0 ? longest : 0));
        assert_true(counted[q].most < model_weight_bytes(m));
        if (model_keeps_shards(s))
            shards_compare(s, want, n_rank, rank, how);
        else {
            const void *weights = model_weights(s, &size);
            char *got = bytes_of(devices[q], weights, size);
            if (memcmp(got, want, size) != 0)
                fail_msg("%s, %s: device %d has another part than of whole weights", t->shape->why, how, q);
            free(got);
        }
        free(want);
    }
}

static const struct layout {
    int n_stage, n_team;
    const char *why;
} layouts[] = {
    { 1, 2, "slices" }, { 1, 4, "slices of four" }, { 2, 1, "stages" }, { 4, 1, "stages of four" }, { 2, 2, "stages of slices" }
};

static struct model *cut_open(struct model *m, const struct layout *on)
{
    struct error err;
    struct model *cut = on->n_stage > 1 ? model_staged_open(m, devices, on->n_stage, on->n_team, &err)
                                        : model_sliced_open(m, devices, on->n_team, &err);
    if (!cut)
        fail_msg("%s: %s", on->why, err.text);
    return cut;
}

static void several_devices_try(const struct tried *t)
{
    static const struct {
        int n_rank, rank, zero;
    } cases[] = { { 1, 0, 0 }, { 2, 1, 1 }, { 2, 0, 3 }, { 2, 1, 3 } };
    struct error err;
    for (size_t i = 0; i < ARRAY_SIZE(layouts) * ARRAY_SIZE(cases); i++) {
        const struct layout *on = &layouts[i / ARRAY_SIZE(cases)];
        int n_rank = cases[i % ARRAY_SIZE(cases)].n_rank, rank = cases[i % ARRAY_SIZE(cases)].rank,
            zero = cases[i % ARRAY_SIZE(cases)].zero;
        struct trainer_settings s = settings_of(n_rank, rank, zero);
        counts_begin();
        struct model *m = source_open(t), *cut = cut_open(m, on);
        assert_true(!model_is_elsewhere(m) && model_is_elsewhere(cut));
        model_free(m);
        for (int q = 0; q < DEVICES; q++)
            assert_int_equal(counted[q].most, 0);
        if (!trainer_weights_place(cut, &s, &err))
            fail_msg("%s: %s", on->why, err.text);
        parts_compare(t, cut, n_rank, rank, zero, on->why);
        model_free(cut);
        counts_end();
    }
}

static void several_devices_have_their_parts_and_the_first_a_piece(void **state)
{
    all_try(*state, several_devices_try);
}

static void sampler_try(const struct tried *t)
{
    struct error err;
    counts_begin();
    struct model *m = source_open(t);
    if (!model_team(m, devices, 2, &err))
        fail_msg("%s", err.text);
    parts_compare(t, m, 1, 0, 0, "a sampler");
    model_free(m);
    counts_end();
}

static void a_sampler_of_several_devices_has_slices_only(void **state)
{
    all_try(*state, sampler_try);
}

/* ---- where memory is short */
/* A device with exactly the room that the parts need is enough, and with any less it is said what lacks, and all is given back. */
static void room_try(const struct tried *t)
{
    struct error err = { 0 };
    size_t most[DEVICES];
    for (int less = -1; less <= DEVICES; less++) {
        struct trainer_settings s = settings_of(2, 0, 3);
        counts_begin();
        for (int q = 0; q < DEVICES && less >= 0; q++)
            counted[q].limit = most[q] - (q + 1 == less ? 1 : 0);
        struct model *m = source_open(t), *cut = cut_open(m, &layouts[4]);
        bool ok = trainer_weights_place(cut, &s, &err);
        assert_true(ok == (less <= 0));
        assert_true(ok || (err.code == ERR_NO_MEMORY && strstr(err.text, "weights")));
        for (int q = 0; q < DEVICES && less < 0; q++)
            most[q] = counted[q].most;
        model_free(cut);
        model_free(m);
        counts_end();
    }
}

static void a_device_needs_room_for_its_part_only(void **state)
{
    all_try(*state, room_try);
}

/* ---- */
static void weights_that_nobody_takes_are_let_go(UNUSED void **state)
{
    struct error err;
    uint64_t want, got;
    devices_open();
    counts_begin();
    const struct tried t = { .shape = &shapes[0], .dtype = DT_F32 };
    struct model *m = model_new_shape(&shapes[0].c, devices[0], DT_F32, &err);
    assert_true(m && !model_is_elsewhere(m) && !model_is_whole(m));
    assert_true(model_weights_take(m, &err) && !model_is_whole(m));    // there is nothing to take
    model_free(m);
    m = source_open(&t);
    struct model *copy = model_new_like(m, &err), *whole = model_new_random(&shapes[0].c, SEED, devices[0], DT_F32, &err);
    assert_true(copy && whole && model_weights_copy(copy, m, &err));
    assert_true(model_is_elsewhere(m) && model_weights_hash(copy, &got, &err) && model_weights_hash(whole, &want, &err) && got == want);
    model_free(whole);
    model_free(copy);
    model_free(m);
    counts_end();
    devices_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_device_has_the_whole_or_its_shards_and_a_piece, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(several_devices_have_their_parts_and_the_first_a_piece, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_sampler_of_several_devices_has_slices_only, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_device_needs_room_for_its_part_only, folder_make, folder_remove),
        cmocka_unit_test(weights_that_nobody_takes_are_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
