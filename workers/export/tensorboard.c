/* TensorBoard event files: TFRecord frames (length, masked CRC-32C of it, bytes, masked CRC-32C of them) around protobuf
 * Events. Fields used, from tensorflow's event.proto and summary.proto:
 *   Event   1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary
 *   Summary 1 value { 1 tag (string)  2 simple_value (float)  5 histo }
 *   HistogramProto 1 min  2 max  3 num  4 sum  5 sum_squares (double)  6 bucket_limit  7 bucket (packed double): bucket i is what is
 *   below bucket_limit i and not in an earlier one
 * The cursor remembers how many bytes were complete: after a kill the file is cut back to there, so no step appears twice. */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "workers/export/export.h"
#include "workers/export/rows.h"

/* CRC-32C (Castagnoli, reflected 0x82f63b78), RFC 3720 appendix B.4; masked as TensorFlow's record_writer does. */
static uint32_t crc32c_masked(const void *data, size_t len)
{
    const unsigned char *p = data;
    uint32_t c = ~0u;
    for (size_t i = 0; i < len; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = (c >> 1) ^ (0x82f63b78u & (0u - (c & 1)));
    }
    c = ~c;
    return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

static void varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        buf_char(b, (char)(v | 128));
    buf_char(b, (char)v);
}

static void field_bytes(struct buf *b, int number, const void *data, size_t len)
{
    varint(b, (uint64_t)number << 3 | 2);
    varint(b, len);
    buf_add(b, data, len);
}

static void event_begin(struct buf *b, double wall_s)
{
    buf_clear(b);
    buf_char(b, 1 << 3 | 1);
    buf_add(b, &wall_s, 8);
}

static bool record_write(int fd, const struct buf *event, struct buf *frame, struct error *err)
{
    uint64_t len = event->len;
    uint32_t crc_len = crc32c_masked(&len, 8), crc = crc32c_masked(event->data, event->len);
    buf_clear(frame);
    buf_add(frame, &len, 8);
    buf_add(frame, &crc_len, 4);
    buf_add(frame, event->data, event->len);
    buf_add(frame, &crc, 4);
    if (event->failed || frame->failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for a TensorBoard event");
    for (size_t at = 0; at < frame->len;) {
        ssize_t n = write(fd, frame->data + at, frame->len - at);
        if (n < 0)
            return error_errno(err, "cannot write the TensorBoard event file");
        at += (size_t)n;
    }
    return true;
}

struct events {
    int fd;
    struct journal *journal;
    struct buf event, summary, value, histo, frame;
    struct error *err;
    bool failed;
};

static void field_double(struct buf *b, int number, double v)
{
    varint(b, (uint64_t)number << 3 | 1);
    buf_add(b, &v, 8);
}

static void histogram_add(struct events *e, const struct journal_histogram *named)
{
    const struct histogram *h = &named->h;
    const double stat[] = { h->min, h->max, (double)h->n, h->sum, h->sum2 };
    double limit[HISTOGRAM_BINS], bucket[HISTOGRAM_BINS];
    for (int k = 0; k < HISTOGRAM_BINS; k++) {
        limit[k] = histogram_edge(h, k + 1);
        bucket[k] = h->count[k];
    }
    buf_clear(&e->histo);
    for (int k = 0; k < 5; k++)
        field_double(&e->histo, k + 1, stat[k]);
    field_bytes(&e->histo, 6, limit, sizeof limit);
    field_bytes(&e->histo, 7, bucket, sizeof bucket);
    buf_clear(&e->value);
    field_bytes(&e->value, 1, named->name, strlen(named->name));
    field_bytes(&e->value, 5, buf_text(&e->histo), e->histo.len);
    field_bytes(&e->summary, 1, buf_text(&e->value), e->value.len);
}

static bool step_write(void *arg, const struct journal_step *row)
{
    struct events *e = arg;
    event_begin(&e->event, row->wall_s);
    buf_char(&e->event, 2 << 3);
    varint(&e->event, (uint64_t)row->step);
    buf_clear(&e->summary);
    for (int i = 0; i < row->n; i++) {
        float v = (float)row->metric[i].value;
        if (!isfinite(v))
            continue;
        buf_clear(&e->value);
        field_bytes(&e->value, 1, row->metric[i].name, strlen(row->metric[i].name));
        buf_char(&e->value, 2 << 3 | 5);
        buf_add(&e->value, &v, 4);
        field_bytes(&e->summary, 1, buf_text(&e->value), e->value.len);
    }
    struct journal_histogram h[HISTOGRAM_N];
    int n_histogram = row->seq > 0 ? journal_histograms_read(e->journal, row->seq, h, e->err) : 0;
    for (int i = 0; i < n_histogram; i++)
        histogram_add(e, &h[i]);
    if (n_histogram < 0) {
        e->failed = true;
        return false;
    }
    field_bytes(&e->event, 5, buf_text(&e->summary), e->summary.len);
    e->failed = !record_write(e->fd, &e->event, &e->frame, e->err);
    return !e->failed;
}

bool export_tensorboard(const struct export_request *r, struct error *err)
{
    struct cursor cursor;
    struct events e = { .fd = -1, .err = err };
    char dir[PATH_MAX], path[PATH_MAX];
    bool ok = false;
    struct journal *j = rows_open(r->run_dir, err);
    if (!j)
        return false;
    e.journal = j;
    TRY(cursor_read(&cursor, r->run_dir, "tensorboard", err));
    TRY(r->out_path ? path_join(dir, sizeof dir, r->out_path, "") : path_join(dir, sizeof dir, r->run_dir, "export/tensorboard"));
    TRY(dir_make(dir, 0755, err));
    TRY(path_join(path, sizeof path, dir, "events.out.tfevents.rollcall"));
    TRY((e.fd = file_create(path, O_RDWR, 0644, err)) >= 0);
    if (ftruncate(e.fd, cursor.extra) != 0 || lseek(e.fd, 0, SEEK_END) < 0) {
        error_errno(err, "cannot open '%s'", path);
        goto out;
    }
    if (cursor.extra == 0) {
        event_begin(&e.event, clock_wall_s());
        field_bytes(&e.event, 3, "brain.Event:2", 13);
        TRY(record_write(e.fd, &e.event, &e.frame, err));
    }
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);
        struct cursor was = cursor;
        TRY(rows_read(j, &cursor, step_write, &e, err) && !e.failed);
        if (cursor.seq != was.seq || cursor.eval_step != was.eval_step || cursor.extra == 0) {
            struct stat st;
            if (fdatasync(e.fd) != 0 || fstat(e.fd, &st) != 0) {
                error_errno(err, "cannot write '%s'", path);
                goto out;
            }
            cursor.extra = st.st_size;
            TRY(cursor_write(&cursor, r->run_dir, "tensorboard", err));
        }
        if (last)
            break;
        rows_wait(r->run_dir, 1000);
    }
    ok = true;
out:
    if (e.fd >= 0)
        close(e.fd);
    buf_release(&e.event);
    buf_release(&e.summary);
    buf_release(&e.value);
    buf_release(&e.histo);
    buf_release(&e.frame);
    journal_close(j);
    return ok;
}
