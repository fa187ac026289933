#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/record/rollout_file.h"

static char dir[64], path[96];
static struct error err;

static int dir_setup(UNUSED void **state)
{
    strcpy(dir, "/tmp/rollout_file_test_XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/r.zst", dir);
    return 0;
}

static int dir_teardown(UNUSED void **state)
{
    return !dir_remove(dir, &err);
}

static const char *record_text(int i)
{
    static char text[4096];
    int n = snprintf(text, sizeof text, "{\"item\":%d,\"text\":\"", i);
    for (int k = 0; k < 20 * i; k++)
        text[n++] = (char)('a' + (k * 7 + i) % 26);
    strcpy(text + n, "\"}\n");
    return text;
}

struct place {
    int64_t offset, size;
};

static void records_write(int first, int n, struct place *place)
{
    struct rollout_file *f = rollout_file_open(path, 0, NULL, &err);
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        const char *text = record_text(first + i);
        assert_true(rollout_file_append(f, text, strlen(text), &place[first + i].offset, &place[first + i].size, &err));
    }
    assert_true(rollout_file_sync(f, &err));
    rollout_file_close(f);
}

static int records_count(void)
{
    struct rollout_reader *r = rollout_reader_new(path, &err);
    struct buf out = BUF_INIT;
    bool more = true;
    int n = 0;
    assert_non_null(r);
    for (; rollout_reader_next(r, &out, &more, &err) && more; n++)
        assert_string_equal(buf_text(&out), record_text(n));
    assert_false(more);
    buf_release(&out);
    rollout_reader_free(r);
    return n;
}

static void records_come_back_in_order_and_by_their_place(UNUSED void **state)
{
    struct place place[20];
    struct buf out = BUF_INIT;
    records_write(0, 12, place);
    records_write(12, 8, place);    // opened again: appended
    assert_int_equal(records_count(), 20);
    for (int i = 19; i >= 0; i -= 3) {
        buf_clear(&out);
        assert_true(rollout_file_read(path, place[i].offset, place[i].size, &out, &err));
        assert_string_equal(buf_text(&out), record_text(i));
    }
    assert_false(rollout_file_read(path, place[19].offset, place[19].size + 1, &out, &err));
    assert_false(rollout_file_read(path, place[3].offset + 1, place[3].size, &out, &err));
    assert_non_null(strstr(err.text, path));
    buf_release(&out);
}

static void a_file_cut_anywhere_keeps_its_whole_records_and_goes_on(UNUSED void **state)
{
    struct place place[7];
    struct buf whole = BUF_INIT;
    struct rollout_opened opened;
    unlink(path);
    records_write(0, 6, place);
    assert_true(file_read(&whole, path, 1 << 20, &err));
    int want = 0;
    for (int64_t len = 0; len <= (int64_t)whole.len; len++) {
        if (want < 6 && len == place[want].offset + place[want].size)
            want++;
        FILE *file = fopen(path, "w");
        assert_int_equal(fwrite(whole.data, 1, (size_t)len, file), len);
        fclose(file);
        assert_int_equal(records_count(), want);    // a reader does not mind
        struct rollout_file *f = rollout_file_open(path, 0, &opened, &err);
        assert_non_null(f);
        assert_int_equal(opened.n_record, want);
        assert_int_equal(opened.size_bytes + opened.cut_bytes, len);
        const char *text = record_text(want);
        assert_true(rollout_file_append(f, text, strlen(text), &place[6].offset, &place[6].size, &err));
        assert_int_equal(place[6].offset, opened.size_bytes);
        rollout_file_close(f);
        assert_int_equal(records_count(), want + 1);
    }
    buf_release(&whole);
}

static void a_tail_of_zeros_or_noise_is_cut_off(UNUSED void **state)
{
    static const struct {
        const char *tail;
        size_t len;
        const char *why;
    } cases[] = {
        { "\0\0\0\0\0\0\0\0", 8, "a file system that lost the data but kept the size" },
        { "x", 1, "one strange byte" },
        { "\x28\xb5\x2f", 3, "half a magic number" },
        { "\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff", 10, "a magic number and nonsense" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct place place[3];
        struct rollout_opened opened;
        unlink(path);
        records_write(0, 3, place);
        FILE *file = fopen(path, "a");
        fwrite(cases[i].tail, 1, cases[i].len, file);
        fclose(file);
        struct rollout_file *f = rollout_file_open(path, 0, &opened, &err);
        assert_non_null(f);
        assert_int_equal(opened.cut_bytes, cases[i].len);
        assert_int_equal(opened.n_record, 3);
        rollout_file_close(f);
        assert_int_equal(records_count(), 3);
    }
}

static void byte_flip(int64_t at)
{
    FILE *file = fopen(path, "r+");
    fseek(file, at, SEEK_SET);
    int c = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(c ^ 1, file);
    fclose(file);
}

static void damage_in_the_middle_costs_one_record_and_nothing_is_cut(UNUSED void **state)
{
    static const struct {
        int64_t back;
        const char *why;
    } cases[] = { { 2, "in its checksum" }, { 40, "in its data" } };
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct place place[7];
        struct rollout_opened opened;
        struct buf before = BUF_INIT, after = BUF_INIT, out = BUF_INIT;
        unlink(path);
        records_write(0, 6, place);
        byte_flip(place[2].offset + place[2].size - cases[k].back);
        assert_true(file_read(&before, path, 1 << 20, &err));
        struct rollout_file *f = rollout_file_open(path, 0, &opened, &err);
        assert_non_null(f);
        assert_int_equal(opened.n_record, 5);
        assert_int_equal(opened.damaged_bytes, place[2].size);
        assert_int_equal(opened.cut_bytes, 0);
        assert_true(rollout_file_append(f, record_text(6), strlen(record_text(6)), &place[6].offset, &place[6].size, &err));
        assert_int_equal(place[6].offset, place[5].offset + place[5].size);
        rollout_file_close(f);
        assert_true(file_read(&after, path, 1 << 20, &err));
        assert_memory_equal(before.data, after.data, before.len);
        assert_false(rollout_file_read(path, place[2].offset, place[2].size, &out, &err));
        assert_int_equal(err.code, ERR_DATA);
        struct rollout_reader *r = rollout_reader_new(path, &err);    // it says where, once, and goes on after it
        bool more = true;
        int seen[7] = { 0 }, n_bad = 0;
        for (int i = 0; more && i < 20; i++) {
            if (!rollout_reader_next(r, &out, &more, &err)) {
                assert_non_null(strstr(err.text, "damaged at byte"));
                assert_int_equal(err.code, ERR_DATA);
                n_bad++;
                more = true;
            } else if (more) {
                seen[atoi(buf_text(&out) + strlen("{\"item\":"))]++;
            }
        }
        assert_int_equal(n_bad, 1);
        for (int i = 0; i < 7; i++)
            assert_int_equal(seen[i], i != 2);
        rollout_reader_free(r);
        // the index vouches for what is before its size, so only the tail is looked at
        assert_non_null(f = rollout_file_open(path, place[5].offset, &opened, &err));
        assert_int_equal(opened.damaged_bytes, 0);
        rollout_file_close(f);
        buf_release(&out);
        buf_release(&before);
        buf_release(&after);
    }
}

static void a_file_shorter_than_its_index_keeps_its_whole_records_and_says_what_is_lost(UNUSED void **state)
{
    struct place place[5];
    struct rollout_opened opened;
    struct buf out = BUF_INIT;
    unlink(path);
    records_write(0, 5, place);
    int64_t known = place[4].offset + place[4].size, left = place[3].offset + place[3].size / 2;
    assert_int_equal(truncate(path, left), 0);
    struct rollout_file *f = rollout_file_open(path, known, &opened, &err);
    assert_non_null(f);
    assert_int_equal(opened.lost_bytes, known - left);
    assert_int_equal(opened.n_record, 3);
    assert_int_equal(opened.size_bytes, place[3].offset);
    for (int i = 0; i < 5; i++) {
        bool ok = rollout_file_read(path, place[i].offset, place[i].size, &out, &err);
        assert_int_equal(ok, i < 3);
        assert_true(ok || err.code == ERR_DATA);
    }
    assert_true(rollout_file_append(f, record_text(3), strlen(record_text(3)), &place[3].offset, &place[3].size, &err));
    assert_int_equal(records_count(), 4);
    rollout_file_close(f);
    buf_release(&out);
}

/* A limit on the file's size makes pwrite write a part and then fail, as a full disk does. */
static void a_full_disk_leaves_the_file_as_it_was(UNUSED void **state)
{
    struct place place[3];
    struct rlimit old, tight;
    int64_t offset, size;
    unlink(path);
    records_write(0, 3, place);
    int64_t end = place[2].offset + place[2].size;
    struct rollout_file *f = rollout_file_open(path, 0, NULL, &err);
    assert_non_null(f);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)end + 10;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    bool ok = rollout_file_append(f, record_text(3), strlen(record_text(3)), &offset, &size, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_false(ok);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(records_count(), 3);
    assert_true(rollout_file_append(f, record_text(3), strlen(record_text(3)), &offset, &size, &err));    // space again
    assert_int_equal(offset, end);
    assert_int_equal(records_count(), 4);
    rollout_file_close(f);
}

static void what_is_cut_off_makes_room_for_the_next_record(UNUSED void **state)
{
    struct place place[8];
    unlink(path);
    records_write(0, 5, place);
    struct rollout_file *f = rollout_file_open(path, place[3].offset, NULL, &err);
    assert_non_null(f);
    assert_true(rollout_file_cut(f, place[3].offset, &err));
    assert_int_equal(records_count(), 3);
    rollout_file_close(f);
    records_write(3, 1, place);
    assert_int_equal(records_count(), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back_in_order_and_by_their_place),
        cmocka_unit_test(a_file_cut_anywhere_keeps_its_whole_records_and_goes_on),
        cmocka_unit_test(a_tail_of_zeros_or_noise_is_cut_off),
        cmocka_unit_test(damage_in_the_middle_costs_one_record_and_nothing_is_cut),
        cmocka_unit_test(a_file_shorter_than_its_index_keeps_its_whole_records_and_says_what_is_lost),
        cmocka_unit_test(a_full_disk_leaves_the_file_as_it_was),
        cmocka_unit_test(what_is_cut_off_makes_room_for_the_next_record),
    };
    return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
