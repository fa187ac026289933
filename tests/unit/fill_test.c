/* A file that is filled in parts, in the place of an earlier one: nobody who reads that one sees other bytes. */
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
#include "protocol/base/file.h"
#include "workers/node/bulk/fill.h"

#define PART 8192
#define SIZE ((size_t)3 * PART + 100)

static char root[64], spare[80], next[80], whole[80];
static bool memory;    // root is on tmpfs, where files are used again

static int setup(void **state)
{
    (void)state;
    memory = access("/dev/shm", W_OK) == 0 && path_in_memory("/dev/shm");
    snprintf(root, sizeof root, "%s/rc-fill-XXXXXX", memory ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(root));
    snprintf(spare, sizeof spare, "%s/spare", root);
    snprintf(next, sizeof next, "%s/next.new", root);
    snprintf(whole, sizeof whole, "%s/next", root);
    return 0;
}

static int teardown(void **state)
{
    struct error err;
    (void)state;
    return dir_remove(root, &err) ? 0 : -1;
}

/* Write a file of size bytes 'a'; returns which file it is. */
static ino_t spare_make(size_t size)
{
    struct stat st;
    char bytes[2 * SIZE];
    FILE *f = fopen(spare, "w");
    assert_non_null(f);
    memset(bytes, 'a', size);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(stat(spare, &st), 0);
    return st.st_ino;
}

/* Fill the file with 'b', part for part, in place or not, and finish it. Returns which file it is. */
static ino_t file_fill(struct fill *f)
{
    struct error err = { 0 };
    struct stat st;
    uint8_t bytes[PART];
    memset(bytes, 'b', sizeof bytes);
    for (size_t at = 0; at < SIZE; at += PART) {
        size_t n = MIN((size_t)PART, SIZE - at);
        uint8_t *place = at == PART ? fill_place(f, at, n) : NULL;
        if (place)
            memset(place, 'b', n);
        if (!fill_write(f, place ? place : bytes, at, n, &err))
            fail_msg("%s", err.text);
        fill_leave(f, at, n);
    }
    if (!fill_finish(f, whole, &err))
        fail_msg("%s", err.text);
    fill_close(f);
    struct file_map map;
    assert_false(path_exists(next));
    assert_true(file_map_shared(&map, whole, &err));    // nothing holds it
    assert_int_equal(map.size_bytes, SIZE);
    for (size_t i = 0; i < SIZE; i++)
        assert_int_equal(map.data[i], 'b');
    file_map_close(&map);
    assert_int_equal(stat(whole, &st), 0);
    return st.st_ino;
}

static void a_file_that_nobody_needs_gives_its_place(void **state)
{
    static const size_t size[] = { SIZE, SIZE / 2, 2 * SIZE, 0 };
    struct error err = { 0 };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(size); i++) {
        struct fill f;
        ino_t was = spare_make(size[i]);
        assert_true(fill_open(&f, next, spare, SIZE, &err));
        assert_false(path_exists(spare));
        assert_true(file_fill(&f) == was || !memory);
    }
}

static void who_reads_it_keeps_its_bytes(void **state)
{
    struct error err = { 0 };
    struct file_map map;
    struct fill f;
    (void)state;
    ino_t was = spare_make(SIZE);
    assert_true(file_map_shared(&map, spare, &err));
    assert_true(fill_open(&f, next, spare, SIZE, &err));
    assert_true(file_fill(&f) != was);
    for (size_t i = 0; i < SIZE; i++)
        assert_int_equal(map.data[i], 'a');
    file_map_close(&map);
}

static void a_file_with_another_name_keeps_its_bytes(void **state)
{
    struct error err = { 0 };
    struct file_map map;
    struct fill f;
    char other[80];
    (void)state;
    snprintf(other, sizeof other, "%s/other", root);
    ino_t was = spare_make(SIZE);
    assert_int_equal(link(spare, other), 0);
    assert_true(fill_open(&f, next, spare, SIZE, &err));
    assert_true(file_fill(&f) != was);
    assert_true(file_map_open(&map, other, &err));
    assert_int_equal(map.data[PART], 'a');
    file_map_close(&map);
}

static void nobody_begins_to_read_what_is_being_filled(void **state)
{
    struct error err = { 0 };
    struct file_map map;
    struct fill f;
    (void)state;
    if (!memory)
        return;
    spare_make(SIZE);
    assert_true(fill_open(&f, next, spare, SIZE, &err));
    assert_int_equal(link(next, spare), 0);    // as if the reader had found it before it was renamed
    assert_false(file_map_shared(&map, spare, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    file_fill(&f);
}

/* A mapping that is made just before the file's often lies just after it. */
static void leaving_more_than_the_file_has_touches_nothing_else(void **state)
{
    struct error err = { 0 };
    struct fill f;
    (void)state;
    uint8_t *other = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(other != MAP_FAILED);
    memset(other, 'o', PART);
    assert_true(fill_open(&f, next, NULL, SIZE, &err));
    fill_leave(&f, 0, 100 * SIZE);
    for (size_t i = 0; i < PART; i++)
        assert_int_equal(other[i], 'o');
    munmap(other, PART);
    file_fill(&f);
}

static void an_unfinished_file_is_removed(void **state)
{
    struct error err = { 0 };
    struct fill f;
    (void)state;
    spare_make(SIZE);
    assert_true(fill_open(&f, next, spare, SIZE, &err));
    fill_close(&f);
    assert_false(path_exists(next) || path_exists(whole) || path_exists(spare));
    assert_false(fill_open(&f, "/dev/null/next", NULL, SIZE, &err));
    assert_int_equal(f.fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_that_nobody_needs_gives_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(who_reads_it_keeps_its_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_with_another_name_keeps_its_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_begins_to_read_what_is_being_filled, setup, teardown),
        cmocka_unit_test_setup_teardown(leaving_more_than_the_file_has_touches_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(an_unfinished_file_is_removed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
