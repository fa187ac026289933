/* The table of algorithms that a GPU's products are computed by: its text, and the file that keeps it for the next start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "kernels/choices_file.h"
#include "protocol/base/file.h"

#define CARD "NVIDIA H200, 132 multiprocessors, 139 GiB; CUDA driver 13.0, cuBLASLt 13.1.0"

/* A kind whose ways differ by numbers of rows: ours up to 64, then two of the library's. */
static struct choice *choice_put(struct choices *c, int64_t n_out, int64_t n_in, bool bias)
{
    struct choice *x = choices_take(c, &(struct product_kind){ .n_out = n_out, .n_in = n_in, .bias = bias });
    assert_non_null(x);
    x->state = CHOICE_PASSED;
    x->split = 1;
    for (int b = 0; b < CHOICE_BUCKETS; b++)
        x->way[b] = b <= 6 ? (struct choice_way){ .own = 16 }
                           : (struct choice_way){ .config = { 66, b < 10 ? 20 : 23, 36, 1, 0, 0, 7, 0, 2 } };
    return x;
}

static void a_line_says_what_multiplies_which_rows(UNUSED void **state)
{
    static const struct {
        enum choice_state state;
        int split, n_left_out;
        bool from_disk, same;
        const char *text;
    } cases[] = {
        { CHOICE_PASSED, 1, 0, false, false,
          "qkv 3584 to 4608 with bias: 1-64 rows own kernel of 16 outputs a block, 65-512 rows library 66 tile 20 stages 36, 513+ rows "
          "library 66 tile 23 stages 36; equal bits: passed" },
        { CHOICE_PASSED, 2, 3, true, true,
          "qkv 3584 to 4608 with bias, sums in 2 parts: 1+ rows own kernel of 16 outputs a block; equal bits: passed, 3 with other bits "
          "left out; from disk" },
        { CHOICE_READ, 1, 0, true, true,
          "qkv 3584 to 4608 with bias: 1+ rows own kernel of 16 outputs a block; equal bits: not tried yet; from disk" },
        { CHOICE_PLAIN, 1, 9, false, false,
          "qkv 3584 to 4608 with bias: plain kernel at any number of rows; equal bits: failed, the library keeps no one order of "
          "summation here" },
        { CHOICE_UNFIT, 1, 0, false, false,
          "qkv 3584 to 4608 with bias: plain kernel at any number of rows, for sizes that are no multiples of 8; equal bits: passed" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[1024], cut[12];
        struct choices *c = calloc(1, sizeof *c);
        struct choice *x = choice_put(c, 4608, 3584, true);
        choice_name(x, "qkv");
        x->state = cases[i].state;
        x->split = cases[i].split;
        x->n_left_out = cases[i].n_left_out;
        x->from_disk = cases[i].from_disk;
        for (int b = 0; cases[i].same && b < CHOICE_BUCKETS; b++)
            x->way[b] = x->way[0];
        choice_text(x, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        choice_text(x, cut, sizeof cut);
        assert_string_equal(cut, "qkv 3584 to");
        free(c);
    }
}

static void products_of_one_kind_share_a_line_with_both_names(UNUSED void **state)
{
    struct choice c = { 0 };
    choice_name(&c, "o");
    choice_name(&c, "down");
    choice_name(&c, "o");
    choice_name(&c, "down");
    assert_string_equal(c.name, "o down");
    for (int i = 0; i < 30; i++) {    // a name that is too long is cut off
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        choice_name(&c, name);
    }
    assert_int_equal(strlen(c.name), sizeof c.name - 1);
}

static void what_another_handle_has_chosen_is_tried_before_it_is_used(UNUSED void **state)
{
    struct choices *c = calloc(1, sizeof *c), *from = calloc(1, sizeof *from);
    choice_put(c, 8, 8, false)->way[0].own = 32;
    choice_put(from, 8, 8, false);    // known already
    choice_put(from, 4608, 3584, true)->n_left_out = 2;
    choice_put(from, 16, 8, false)->state = CHOICE_PLAIN;    // to be tried again
    choice_put(from, 24, 8, false)->state = CHOICE_READ;     // not tried by it
    c->seconds = 1;
    from->seconds = 2;
    choices_join(c, from);
    assert_int_equal(c->n, 2);
    assert_int_equal(c->at[0].way[0].own, 32);
    assert_int_equal(c->at[1].state, CHOICE_READ);
    assert_false(c->at[1].from_disk);
    assert_int_equal(c->at[1].n_left_out, 2);
    assert_true(c->seconds == 3);
    free(c);
    free(from);
}

static void a_full_table_forgets_what_was_only_read(UNUSED void **state)
{
    struct choices *c = calloc(1, sizeof *c);
    for (int i = 0; i < CHOICES_MAX; i++)
        choice_put(c, 8 * (i + 1), 8, false)->state = i == 5 ? CHOICE_READ : CHOICE_PASSED;
    struct product_kind more = { .n_out = 4096, .n_in = 4096 }, gone = { .n_out = 48, .n_in = 8 };
    struct choice *x = choices_take(c, &more);
    assert_ptr_equal(x, &c->at[5]);
    assert_null(choices_find(c, &gone));
    x->state = CHOICE_PASSED;
    assert_null(choices_take(c, &gone));
    assert_ptr_equal(choices_take(c, &more), x);
    free(c);
}

/* The table of two kinds as text. */
static struct choices *two(struct buf *text)
{
    struct choices *c = calloc(1, sizeof *c);
    snprintf(c->what, sizeof c->what, CARD);
    choice_put(c, 4608, 3584, true);
    choice_put(c, 3584, 18944, false)->kind.parts = 4;
    choice_put(c, 24, 8, false)->state = CHOICE_PLAIN;    // it is tried again at each start
    choice_put(c, 32, 8, false)->untimed = true;          // and timed again
    choices_write(c, text);
    return c;
}

static void what_is_written_is_read_again(UNUSED void **state)
{
    struct buf text = BUF_INIT;
    struct error err;
    struct choices *c = two(&text), *r = calloc(1, sizeof *r);
    snprintf(r->what, sizeof r->what, CARD);
    if (!choices_parse(r, text.data, text.len, "file", &err))
        fail_msg("%s", err.text);
    assert_int_equal(r->n, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r->at[i].state, CHOICE_READ);
        assert_true(r->at[i].from_disk);
        assert_ptr_equal(choices_find(r, &c->at[i].kind), &r->at[i]);
        assert_memory_equal(r->at[i].way, c->at[i].way, sizeof c->at[i].way);
    }
    r->at[0].way[0].own = 32;    // what is in the table already stays
    assert_true(choices_parse(r, text.data, text.len, "file", &err));
    assert_int_equal(r->n, 2);
    assert_int_equal(r->at[0].way[0].own, 32);
    buf_release(&text);
    free(c);
    free(r);
}

#define TEXT_64 "0123456789012345678901234567890123456789012345678901234567890123"
static void a_text_that_is_not_one_is_refused_and_says_where(UNUSED void **state)
{
    static const struct {
        const char *from, *to;    // replaced in a good text
        const char *why;
    } cases[] = {
        { "products 2", "products 3", "file:1: not" },
        { "H200", "H100", "file:2: for another card" },
        { "product 4608 ", "product 0 ", "file:3: not 'product" },
        { "product 4608 ", "product 99999999999999999999 ", "file:3: not 'product" },
        { "product 4608 ", "product -8 ", "file:3: not 'product" },
        { "bias 1", "bias 2", "file:3: not 'product" },
        { "parts 4", "parts 16", "file:19: not 'product" },
        { "own 16", "own 0", "file:4: not 'own" },
        { "own 16", "own 16 16", "file:4: not 'own" },
        { "own 16", "own", "file:4: not 'own" },
        { "own 16", "library 66", "file:4: not 'own" },
        { "library 66 20 36 1 0 0 7 0 2\n", "library 66 20 36 1 0 0 7 0 2 1\n", "file:11: not 'own" },
        { "library 66 20 36 1 0 0 7 0 2\n", "library 66 20 36 1 0 0 7 0 x\n", "file:11: not 'own" },
        { "library 66 20 36 1 0 0 7 0 2\n", "library 4294967296 20 36 1 0 0 7 0 2\n", "file:11: not 'own" },
        { "library 66 20 36 1 0 0 7 0 2\n", "", "file:18: not 'own" },
        { "product 3584 18944 parts 4 bias 0 f32 0", "product 4608 3584 parts 0 bias 1 f32 0", "file:19: too many" },
        { "products 2\n", "products 2 " TEXT_64 TEXT_64 TEXT_64 TEXT_64 "\n", "file:1: too long" },
        { "end\n", "", "file:35: the file ends" },
        { "end\n", "end\nend\n", "file:35: more after" },
        { "end\n", "end", "file:35: the file ends" },
    };
    struct buf text = BUF_INIT;
    struct error err;
    free(two(&text));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf bad = BUF_INIT;
        struct choices *r = calloc(1, sizeof *r);
        snprintf(r->what, sizeof r->what, CARD);
        char *at = strstr(text.data, cases[i].from);
        assert_non_null(at);
        buf_add(&bad, text.data, (size_t)(at - text.data));
        buf_str(&bad, cases[i].to);
        buf_str(&bad, at + strlen(cases[i].from));
        assert_false(choices_parse(r, bad.data, bad.len, "file", &err));
        if (strncmp(err.text, cases[i].why, strlen(cases[i].why)) != 0)
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(err.code, ERR_DATA);
        assert_int_equal(r->n, 0);    // not even what came before the fault
        buf_release(&bad);
        free(r);
    }
    for (size_t len = 0; len < text.len; len++) {    // cut off anywhere
        struct choices *r = calloc(1, sizeof *r);
        char *part = malloc(len + 1);    // of its exact length, for sanitizers
        memcpy(part, text.data, len);
        snprintf(r->what, sizeof r->what, CARD);
        assert_false(choices_parse(r, part, len, "file", &err));
        free(part);
        free(r);
    }
    buf_release(&text);
}

/* The file of CARD in a cache folder of its own. */
static void cache_use(const char *dir, char *path, size_t size)
{
    setenv("XDG_CACHE_HOME", dir, 1);
    unsetenv("RC_CUDA_CHOICES");
    assert_true(choices_path(CARD, path, size));
}

static void the_file_is_one_for_each_card_and_library(UNUSED void **state)
{
    char path[4096], other[4096];
    cache_use("/cache", path, sizeof path);
    assert_string_equal(path, "/cache/rollcall/products-nvidia-h200-132-multiprocessors-139-gib-cuda-driver-13-0-cublaslt-13-1-0.txt");
    assert_true(choices_path("../../etc; a card", other, sizeof other));
    assert_string_equal(other, "/cache/rollcall/products-etc-a-card.txt");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/home/me", 1);
    assert_true(choices_path("card", path, sizeof path));
    assert_string_equal(path, "/home/me/.cache/rollcall/products-card.txt");
    assert_false(choices_path("card", path, 20));    // does not fit
    setenv("XDG_CACHE_HOME", "relative", 1);         // the specification says to ignore it
    assert_true(choices_path("card", path, sizeof path));
    assert_string_equal(path, "/home/me/.cache/rollcall/products-card.txt");
    unsetenv("HOME");
    assert_false(choices_path("card", path, sizeof path));
    cache_use("/cache", path, sizeof path);
    setenv("RC_CUDA_CHOICES", "off", 1);
    assert_false(choices_path("card", path, sizeof path));
    unsetenv("RC_CUDA_CHOICES");
}

static void two_processes_keep_what_both_have_chosen(UNUSED void **state)
{
    char dir[] = "/tmp/choices-XXXXXX", path[4096];
    struct error err;
    struct stat st;
    assert_non_null(mkdtemp(dir));
    cache_use(dir, path, sizeof path);
    struct choices *a = choices_open(CARD, &err), *b = choices_open(CARD, &err);
    assert_true(a && b && a->n == 0);
    choices_save(a);    // nothing has changed: no file
    assert_int_not_equal(stat(path, &st), 0);
    choice_put(a, 4608, 3584, true);
    choice_put(b, 3584, 18944, false);
    a->changed = b->changed = true;
    choices_save(a);
    choices_save(b);
    struct choices *c = choices_open(CARD, &err);
    assert_int_equal(c->n, 2);
    assert_non_null(choices_find(c, &a->at[0].kind));
    assert_non_null(choices_find(c, &b->at[0].kind));
    free(a);
    free(b);
    free(c);
    assert_true(dir_remove(dir, &err));
}

/* Open the table twice; how many lines the log has of it. */
static int lines_logged_opening(struct choices **a, struct choices **b)
{
    struct error err;
    char text[4096];
    int fd = memfd_create("log", MFD_CLOEXEC), kept = dup(STDERR_FILENO), n = 0;
    assert_true(fd >= 0 && kept >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
    *a = choices_open(CARD, &err);
    *b = choices_open(CARD, &err);
    assert_true(dup2(kept, STDERR_FILENO) == STDERR_FILENO);
    ssize_t len = pread(fd, text, sizeof text, 0);
    for (ssize_t i = 0; i < len; i++)
        n += text[i] == '\n';
    close(fd);
    close(kept);
    return n;
}

static void a_broken_or_foreign_file_is_said_once_and_written_again(UNUSED void **state)
{
    static const char *const texts[] = { "", "rubbish\n", "rollcall products 2\nfor another card\nend\n", "\xff\xfe\n" };
    char dir[] = "/tmp/choices-XXXXXX", path[4096], sub[4096];
    struct error err;
    assert_non_null(mkdtemp(dir));
    cache_use(dir, path, sizeof path);
    assert_true(path_join(sub, sizeof sub, dir, "rollcall") && dir_make(sub, 0777, &err));
    for (size_t i = 0; i < ARRAY_SIZE(texts) + 1; i++) {
        if (i < ARRAY_SIZE(texts)) {
            assert_true(file_write(path, texts[i], strlen(texts[i]), &err));
        } else {    // larger than such a file can be
            char *big = calloc(1, CHOICES_FILE_MAX + 1);
            assert_true(file_write(path, big, CHOICES_FILE_MAX + 1, &err));
            free(big);
        }
        struct choices *c, *next;    // of two devices
        assert_int_equal(lines_logged_opening(&c, &next), 1);
        assert_true(c && next && c->n == 0 && next->n == 0);
        free(next);
        choice_put(c, 4608, 3584, true);
        c->changed = true;
        choices_save(c);
        free(c);
        c = choices_open(CARD, &err);
        assert_int_equal(c->n, 1);
        free(c);
    }
    assert_true(dir_remove(dir, &err));
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);    // a place that cannot be written is only said in the log
    struct choices *c = choices_open(CARD, &err);
    choice_put(c, 4608, 3584, true);
    c->changed = true;
    choices_save(c);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_what_multiplies_which_rows),
        cmocka_unit_test(products_of_one_kind_share_a_line_with_both_names),
        cmocka_unit_test(what_another_handle_has_chosen_is_tried_before_it_is_used),
        cmocka_unit_test(a_full_table_forgets_what_was_only_read),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(a_text_that_is_not_one_is_refused_and_says_where),
        cmocka_unit_test(the_file_is_one_for_each_card_and_library),
        cmocka_unit_test(two_processes_keep_what_both_have_chosen),
        cmocka_unit_test(a_broken_or_foreign_file_is_said_once_and_written_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
