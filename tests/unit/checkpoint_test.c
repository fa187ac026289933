/* Checkpoints: complete or recognised as broken, and a restored trainer continues with the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "tests/unit/checkpoint_newest.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"

static char root[] = "/tmp/checkpoint_test.XXXXXX";
struct job {
    struct device *dev;
    struct model *m;
    struct trainer *t;
};
static const int32_t token[] = { 1, 5, 9, 13, 2, 7, 7, 3 };
static const float one[] = { 1, 1, 1, 1, 1, 1, 1, 1 };

static void job_open_with(struct job *j, enum dtype dtype, enum optimizer optimizer)
{
    struct error err = { 0 };
    char dir[1024];
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = 64;
    set.optimizer = optimizer;
    snprintf(dir, sizeof dir, "%s/golden/models/qwen3-tied", TEST_DATA_DIR);
    if (!(j->dev = device_new("ref", 1, &err)) || !(j->m = model_load(dir, j->dev, dtype, &err))
        || !(j->t = trainer_new(j->m, NULL, &set, &err)))
        fail_msg("%s", err.text);
}

static void job_open(struct job *j, enum dtype dtype)
{
    job_open_with(j, dtype, OPTIMIZER_ADAMW);
}

static void job_close(struct job *j)
{
    trainer_free(j->t);
    model_free(j->m);
    device_free(j->dev);
}

static void job_steps(struct job *j, int n)
{
    struct trainer_hyper h;
    struct error err = { 0 };
    double loss, n_tok, norm;
    trainer_hyper_init(&h);
    h.lr = 1e-2;
    for (int i = 0; i < n; i++)
        if (!trainer_sft_step(j->t, &(struct sft_seq){ token, one, 8 }, 1, &h, true, &loss, &n_tok, &norm, &err))
            fail_msg("%s", err.text);
}

static uint64_t job_hash(const struct job *j)
{
    struct error err = { 0 };
    uint64_t h;
    if (!model_weights_hash(j->m, &h, &err))
        fail_msg("%s", err.text);
    return h;
}

static void save(struct checkpoint_writer *w, struct job *j, const char *dir)
{
    struct error err = { 0 };
    struct checkpoint_info info = { .step = trainer_version(j->t), .settings = "{\"lr\": 0.01}" };
    bool ok;
    char path[4096];
    if (!checkpoint_start(w, j->t, dir, &info, &err))
        fail_msg("%s", err.text);
    while (!checkpoint_poll(w, &ok, path, &err))
        usleep(1000);
    if (!ok)
        fail_msg("%s", err.text);
}

static void a_restored_trainer_goes_on_with_the_same_bits(UNUSED void **state)
{
    for (int way = 0; way < 6; way++) {
        int type = way % 2;
        enum optimizer optimizer = (enum optimizer)(way / 2);
        struct job a, b;
        struct error err = { 0 };
        char dir[256], path[4096];
        int64_t step;
        snprintf(dir, sizeof dir, "%s/same-%d", root, way);
        struct checkpoint_writer *w = checkpoint_writer_new(&err);
        job_open_with(&a, type ? DT_BF16 : DT_F32, optimizer);
        job_steps(&a, 3);
        save(w, &a, dir);
        job_steps(&a, 3);    // the uninterrupted run
        job_open_with(&b, type ? DT_BF16 : DT_F32, optimizer);
        if (!checkpoint_newest(dir, path, &step, &err) || !checkpoint_restore(b.t, path, &err))
            fail_msg("%s", err.text);
        assert_true(step == 3 && trainer_version(b.t) == 3);
        job_steps(&b, 3);
        assert_true(job_hash(&a) == job_hash(&b));
        struct model *again = model_load(path, a.dev, type ? DT_BF16 : DT_F32, &err);    // it is a model directory
        assert_non_null(again);
        model_free(again);
        job_close(&a);
        job_close(&b);
        checkpoint_writer_free(w);
    }
}

/* In bf16 the masters are the files' own values, and the weights those values rounded, as they were loaded. */
static void masters_begin_as_the_files_are(UNUSED void **state)
{
    struct error err = { 0 };
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/golden/models/qwen3-tied", TEST_DATA_DIR);
    for (int way = 0; way < 3; way++) {
        struct job a;
        job_open_with(&a, DT_BF16, (enum optimizer)way);
        const struct model *m = a.m;
        uint64_t before = job_hash(&a);
        int64_t n = trainer_state_n(a.t, STATE_MASTER), n_rounded = 0;
        float *rounded = calloc((size_t)n, 4), *master = calloc((size_t)n, 4);
        struct shards *s = model_shards(m, dir, &err);
        assert_true(rounded && master && s && trainer_state_get(a.t, STATE_MASTER, rounded, &err));
        if (!checkpoint_masters_begin(a.t, dir, &err) || !trainer_state_get(a.t, STATE_MASTER, master, &err))
            fail_msg("%s", err.text);
        for (int64_t i = 0; i < model_n_tensor(m); i++) {
            const struct tensor *x = model_tensor(m, i);
            const struct st_tensor *f = shards_find(s, x->name);
            assert_true(f && f->dtype == ST_F32);
            assert_memory_equal(master + x->offset, f->data, (size_t)x->n_elem * 4);
            n_rounded += memcmp(rounded + x->offset, f->data, (size_t)x->n_elem * 4) != 0;
        }
        assert_true(n_rounded > 0);
        assert_true(job_hash(&a) == before);
        free(rounded);
        free(master);
        shards_close(s);
        job_close(&a);
    }
}

static void file_damage(const char *path, bool cut)
{
    int fd = open(path, O_RDWR);
    struct stat st;
    char c;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    if (cut) {
        assert_true(ftruncate(fd, st.st_size / 2) == 0);
    } else {
        assert_true(pread(fd, &c, 1, st.st_size - 3) == 1);
        c = (char)(c ^ 4);
        assert_true(pwrite(fd, &c, 1, st.st_size - 3) == 1);
    }
    close(fd);
}

static void broken_checkpoints_are_skipped(UNUSED void **state)
{
    struct job a;
    struct error err = { 0 };
    char dir[256], path[4096], file[4400];
    int64_t step;
    snprintf(dir, sizeof dir, "%s/broken", root);
    struct checkpoint_writer *w = checkpoint_writer_new(&err);
    job_open(&a, DT_F32);
    assert_false(checkpoint_newest(dir, path, &step, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    for (int i = 0; i < 4; i++) {
        job_steps(&a, 1);
        save(w, &a, dir);
    }
    static const struct {
        int step;
        const char *file;
        bool cut;
    } damage[] = {
        { 4, "model.safetensors", true },
        { 3, "state/trainer.safetensors", false },
        { 2, "state/manifest.json", true },
    };
    for (size_t i = 0; i < ARRAY_SIZE(damage); i++) {
        snprintf(path, sizeof path, "%s/step-%06d", dir, damage[i].step);
        snprintf(file, sizeof file, "%s/%s", path, damage[i].file);
        assert_true(checkpoint_verify(path, &step, &err) && step == damage[i].step);
        file_damage(file, damage[i].cut);
        assert_false(checkpoint_verify(path, &step, &err));
        assert_non_null(strstr(err.text, path));
        assert_true(checkpoint_newest(dir, path, &step, &err) && step == damage[i].step - 1);
    }
    struct buf broken = BUF_INIT, links = BUF_INIT;
    assert_true(checkpoint_newest_whole(dir, NULL, path, &step, &broken, &err) && step == 1);
    assert_non_null(strstr(path, "/step-000001"));
    for (size_t i = 0; i < ARRAY_SIZE(damage); i++)
        assert_non_null(strstr(buf_text(&broken), damage[i].file));
    buf_release(&broken);
    assert_true(checkpoint_newest_whole(dir, "another", path, &step, &broken, &err));
    assert_int_equal(step, 1);    // it does not say which run it belongs to
    buf_release(&broken);
    save(w, &a, dir);    // the broken step 4 is replaced
    assert_true(checkpoint_newest(dir, path, &step, &err) && step == 4);
    assert_true(checkpoint_prune(dir, 1, NULL, &links, &err) && links.len == 0 && checkpoint_newest(dir, path, &step, &err) && step == 4);
    snprintf(path, sizeof path, "%s/step-%06d", dir, 1);
    assert_false(path_exists(path));
    char away[300], link[300], planted[300];
    snprintf(away, sizeof away, "%s/away", root);
    snprintf(link, sizeof link, "%s/step-000001", dir);
    snprintf(planted, sizeof planted, "%s/.step-000035.part-999999", dir);
    snprintf(path, sizeof path, "%s/step-000004", dir);
    assert_true(rename(path, away) == 0 && symlink(away, link) == 0 && symlink(away, planted) == 0);
    save(w, &a, dir);    // the planted link does not look like this writer's
    assert_true(checkpoint_prune(dir, 1, NULL, &links, &err) && strcmp(buf_text(&links), link) == 0);    // moved elsewhere and linked back
    assert_true(!path_is_link(link) && checkpoint_verify(away, &step, &err) && step == 4);
    assert_int_equal(unlink(planted), 0);
    buf_release(&links);
    for (int i = 1; i <= 2; i++) {    // the second one finds the first one's name taken
        assert_true(checkpoint_set_aside(dir, NULL, 4, &err));
        assert_true(checkpoint_newest(dir, path, &step, &err) && step == 4);
        assert_true(checkpoint_set_aside(dir, NULL, 3, &err));
        assert_false(checkpoint_newest(dir, path, &step, &err));
        snprintf(path, sizeof path, "%s/step-%06d.broken-%d", dir, 4, i);
        assert_true(path_exists(path));
        save(w, &a, dir);
    }
    checkpoint_writer_free(w);
    job_close(&a);
}

enum damage {
    CUT_BY_ONE,
    CUT_TO_NOTHING,
    CHANGED,
    LONGER,
    MISSING,
    DAMAGE_N,
};

/* Damage the file whose bytes are b; restore: write them again. */
static void file_change(const char *path, const struct buf *b, enum damage kind, size_t at, bool restore)
{
    struct error err = { 0 };
    struct buf c = BUF_INIT;
    assert_true(buf_add(&c, b->data, b->len));
    if (!restore && kind == CHANGED)
        c.data[at] = (char)(c.data[at] ^ 1);
    if (!restore && kind == LONGER)
        assert_true(buf_char(&c, 'x'));
    size_t len = restore || kind > LONGER ? b->len : kind == CUT_BY_ONE ? b->len - 1 : kind == CUT_TO_NOTHING ? 0 : c.len;
    if (!restore && kind == MISSING)
        assert_true(unlink(path) == 0);
    else
        assert_true(file_write(path, c.data, len, &err));
    buf_release(&c);
}

static void each_file_damaged(const char *dir, const char *newest, const char *prefix)
{
    char folder[400], file[700], path[4096];
    snprintf(folder, sizeof folder, "%s/%s", newest, prefix);
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct error err = { 0 };
        struct buf b = { .max = 1 << 24 };
        int64_t step;
        snprintf(file, sizeof file, "%s%s", folder, e->d_name);
        if (e->d_name[0] == '.' || path_is_dir(file))
            continue;
        assert_true(file_read(&b, file, 1 << 24, &err));
        for (enum damage kind = 0; kind < DAMAGE_N; kind++) {
            bool blank = strcmp(e->d_name, "manifest.json") == 0 && kind == CHANGED;
            for (size_t at = 0; at < b.len; at += kind == CHANGED ? MAX(b.len / 7, (size_t)1) : b.len) {
                if (blank && (b.data[at] == ' ' || b.data[at] == '\n'))
                    continue;    // space for space, or found as a broken form; neither changes what it says
                file_change(file, &b, kind, at, false);
                if (checkpoint_verify(newest, &step, &err))
                    fail_msg("%s: damage %d at byte %zu is not seen", file, (int)kind, at);
                if (!strstr(err.text, newest) || (!blank && !strstr(err.text, e->d_name)))
                    fail_msg("%s: damage %d: the message does not name it: %s", file, (int)kind, err.text);
                assert_true(checkpoint_newest(dir, path, &step, &err) && step == 1);
                file_change(file, &b, kind, at, true);
            }
        }
        assert_true(checkpoint_newest(dir, path, &step, &err) && step == 2);
        buf_release(&b);
        n++;
    }
    closedir(d);
    assert_true(n > 1);
}

static void every_file_cut_changed_or_missing_is_named_and_the_one_before_is_used(UNUSED void **state)
{
    struct job a;
    struct error err = { 0 };
    char dir[256], newest[300];
    snprintf(dir, sizeof dir, "%s/each", root);
    snprintf(newest, sizeof newest, "%s/step-000002", dir);
    struct checkpoint_writer *w = checkpoint_writer_new(&err);
    setenv("RC_LOG", "error", 1);
    job_open(&a, DT_F32);
    for (int i = 0; i < 2; i++) {
        job_steps(&a, 1);
        save(w, &a, dir);
    }
    each_file_damaged(dir, newest, "");
    each_file_damaged(dir, newest, "state/");
    unsetenv("RC_LOG");
    job_close(&a);
    checkpoint_writer_free(w);
}

static void a_failure_to_write_is_reported_and_leaves_nothing(UNUSED void **state)
{
    struct job a;
    struct error err = { 0 };
    char file[256], dir[300];
    snprintf(file, sizeof file, "%s/file", root);
    assert_true(file_write(file, "x", 1, &err));
    snprintf(dir, sizeof dir, "%s/inside", file);
    struct checkpoint_writer *w = checkpoint_writer_new(&err);
    job_open(&a, DT_F32);
    struct checkpoint_info info = { .step = 1 };
    assert_false(checkpoint_start(w, a.t, dir, &info, &err));
    assert_non_null(strstr(err.text, file));
    snprintf(dir, sizeof dir, "%s/missing-tokenizer", root);
    info.tokenizer_dir = file;    // a file where a folder should be: nothing of it exists, so nothing is copied
    assert_true(checkpoint_start(w, a.t, dir, &info, &err) && checkpoint_wait(w, &err));
    checkpoint_writer_free(w);
    job_close(&a);
}

static int setup(UNUSED void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(UNUSED void **state)
{
    struct error err;
    return dir_remove(root, &err) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_trainer_goes_on_with_the_same_bits),
        cmocka_unit_test(masters_begin_as_the_files_are),
        cmocka_unit_test(broken_checkpoints_are_skipped),
        cmocka_unit_test(every_file_cut_changed_or_missing_is_named_and_the_one_before_is_used),
        cmocka_unit_test(a_failure_to_write_is_reported_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
