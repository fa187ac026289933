#include "protocol/wire/bulk.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/mac.h"
#include "protocol/base/tcp.h"

#define NUMBER_BYTES 32
#define ANSWER_BYTES (4 + NUMBER_BYTES)
#define HEAD_BYTES 8
#define TAG_BYTES 16
#define SEALED_MAX (HEAD_BYTES + BULK_RECORD_MAX + TAG_BYTES)
#define OUT_BYTES (2 * SEALED_MAX)    // records that are sent together
#define IN_BYTES (2 * SEALED_MAX)
#define KEY_BYTES 16
#define SALT_BYTES 4    // of a nonce; the other 8 are the record's number

struct way {    // one direction
    EVP_CIPHER_CTX *cipher;
    uint8_t salt[SALT_BYTES];
    uint64_t n;    // records so far
};
struct bulk {
    int fd;
    int64_t limit_ms, n_sent, n_received;
    struct way in, out;
    uint8_t *out_buf, *in_buf;    // owned
    size_t out_len, in_begin, in_end;
    bool broken;    // a record could not be sent or read whole
};

static bool random_get(void *out, size_t len, struct error *err)
{
    return getrandom(out, len, 0) == (ssize_t)len || error_errno(err, "cannot get random bytes for a key");
}

bool bulk_ticket_make(struct bulk_ticket *t, struct error *err)
{
    return random_get(t, sizeof *t, err);
}

/* ---- the socket ---- */

/* While what we have sent is still arriving, the other side has no reason to speak. */
static bool fd_wait(const struct bulk *b, short events, const char *what, struct error *err)
{
    struct pollfd p = { .fd = b->fd, .events = events };
    int rv, unsent = INT_MAX, left = 0;
    bool arrives;
    do {
        rv = poll(&p, 1, (int)b->limit_ms);
        arrives = rv == 0 && ioctl(b->fd, SIOCOUTQ, &left) == 0 && left > 0 && left < unsent;
        unsent = arrives ? left : unsent;
    } while (arrives || (rv < 0 && errno == EINTR));
    return rv > 0 || error_set(err, ERR_TIMEOUT, "a connection for weights has %s for %.3g s", what, (double)b->limit_ms / 1000);
}

static bool fd_failed(const char *what, struct error *err)
{
    error_errno(err, "a connection for weights cannot %s", what);
    err->code = ERR_CLOSED;
    return false;
}

static bool bytes_send(struct bulk *b, const uint8_t *data, size_t len, struct error *err)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(b->fd, data + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            if (!fd_wait(b, POLLOUT, "taken no data", err))
                return false;
        } else if (n < 0 && errno != EINTR) {
            return fd_failed("send", err);
        } else if (n > 0) {
            at += (size_t)n;
            b->n_sent += n;
        }
    }
    return true;
}

/* Receive at least one byte, at most len; *got says how many. */
static bool bytes_receive(struct bulk *b, uint8_t *out, size_t len, size_t *got, struct error *err)
{
    for (;;) {
        ssize_t n = recv(b->fd, out, len, MSG_DONTWAIT);
        if (n > 0) {
            *got = (size_t)n;
            b->n_received += n;
            return true;
        }
        if (n == 0)
            return error_set(err, ERR_CLOSED, "the other side has closed a connection for weights");
        if (errno == EAGAIN) {
            if (!fd_wait(b, POLLIN, "brought no data", err))
                return false;
        } else if (errno != EINTR) {
            return fd_failed("receive", err);
        }
    }
}

static bool all_receive(struct bulk *b, uint8_t *out, size_t len, struct error *err)
{
    size_t got;
    for (size_t at = 0; at < len; at += got)
        if (!bytes_receive(b, out + at, len - at, &got, err))
            return false;
    return true;
}

/* ---- keys ---- */

static bool way_open(struct way *w, bool seals, const uint8_t key[KEY_BYTES], const uint8_t salt[SALT_BYTES], struct error *err)
{
    memcpy(w->salt, salt, SALT_BYTES);
    w->cipher = EVP_CIPHER_CTX_new();
    bool ok = w->cipher
              && (seals ? EVP_EncryptInit_ex(w->cipher, EVP_aes_128_gcm(), NULL, key, NULL)
                        : EVP_DecryptInit_ex(w->cipher, EVP_aes_128_gcm(), NULL, key, NULL))
                     == 1;
    return ok || error_set(err, ERR_UNSUPPORTED, "OpenSSL offers no AES-128-GCM here");
}

/* Both directions' keys: to the caller, and from it. */
static bool keys_derive(struct bulk *b, bool is_caller, const struct bulk_ticket *t, const uint8_t *caller_number, const uint8_t *number,
                        struct error *err)
{
    uint8_t salt[2 * NUMBER_BYTES], key[2][KEY_BYTES + SALT_BYTES];
    memcpy(salt, caller_number, NUMBER_BYTES);
    memcpy(salt + NUMBER_BYTES, number, NUMBER_BYTES);
    if (!key_expand(key, sizeof key, salt, sizeof salt, t->key, sizeof t->key, "rollcall bulk 1", err))
        return error_wrap(err, "cannot derive the keys of a connection for weights");
    const uint8_t *in = key[!is_caller], *out = key[is_caller];
    bool ok = way_open(&b->in, false, in, in + KEY_BYTES, err) && way_open(&b->out, true, out, out + KEY_BYTES, err);
    explicit_bzero(key, sizeof key);
    return ok;
}

static void nonce_next(struct way *w, uint8_t nonce[12])
{
    uint64_t n = w->n++;
    memcpy(nonce, w->salt, SALT_BYTES);
    memcpy(nonce + SALT_BYTES, &n, sizeof n);
}

/* ---- making one ---- */

/* Takes fd, unless it fails. */
static struct bulk *bulk_new(int fd, int64_t limit_ms, struct error *err)
{
    int one = 1;
    struct bulk *b = calloc(1, sizeof *b);
    if (b) {
        *b = (struct bulk){ .fd = fd, .limit_ms = limit_ms, .out_buf = malloc(OUT_BYTES), .in_buf = malloc(IN_BYTES) };
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);    // what is flushed is meant to go
        tcp_suit(fd);
    }
    if (b && b->out_buf && b->in_buf)
        return b;
    if (b)
        b->fd = -1;
    bulk_free(b);
    error_set(err, ERR_NO_MEMORY, "no memory for a connection for weights");
    return NULL;
}

struct bulk *bulk_connect(const char *address, const struct bulk_ticket *t, int64_t limit_ms, struct error *err)
{
    uint8_t hello[BULK_HELLO_BYTES], answer[ANSWER_BYTES];
    int fd = tcp_connect(address, "the head", limit_ms, err);
    struct bulk *b = fd >= 0 ? bulk_new(fd, limit_ms, err) : NULL;
    if (!b) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    memcpy(hello, BULK_MAGIC, 4);
    memcpy(hello + 4, t->name, BULK_NAME_BYTES);
    bool ok = random_get(hello + 4 + BULK_NAME_BYTES, NUMBER_BYTES, err) && bytes_send(b, hello, sizeof hello, err)
              && all_receive(b, answer, sizeof answer, err);
    if (ok && memcmp(answer, BULK_MAGIC, 4) != 0)
        ok = error_set(err, ERR_DATA, "what listens at '%s' does not answer as a head for weights", address);
    if (ok && keys_derive(b, true, t, hello + 4 + BULK_NAME_BYTES, answer + 4, err))
        return b;
    bulk_free(b);
    return NULL;
}

struct bulk *bulk_accept(int fd, const uint8_t *hello, const struct bulk_ticket *t, int64_t limit_ms, struct error *err)
{
    uint8_t answer[ANSWER_BYTES];
    struct bulk *b = bulk_new(fd, limit_ms, err);
    if (!b)
        return NULL;
    memcpy(answer, BULK_MAGIC, 4);
    if (random_get(answer + 4, NUMBER_BYTES, err) && keys_derive(b, false, t, hello + 4 + BULK_NAME_BYTES, answer + 4, err)
        && bytes_send(b, answer, sizeof answer, err))
        return b;
    b->fd = -1;
    bulk_free(b);
    return NULL;
}

void bulk_free(struct bulk *b)
{
    if (!b)
        return;
    EVP_CIPHER_CTX_free(b->in.cipher);
    EVP_CIPHER_CTX_free(b->out.cipher);
    if (b->fd >= 0)
        close(b->fd);
    free(b->out_buf);
    free(b->in_buf);
    free(b);
}

void bulk_limit(struct bulk *b, int64_t limit_ms)
{
    b->limit_ms = limit_ms;
}

void bulk_cut(struct bulk *b)
{
    shutdown(b->fd, SHUT_RDWR);
}

int64_t bulk_sent(const struct bulk *b)
{
    return b->n_sent;
}

int64_t bulk_received(const struct bulk *b)
{
    return b->n_received;
}

/* ---- records ---- */

bool bulk_flush(struct bulk *b, struct error *err)
{
    size_t len = b->out_len;
    b->out_len = 0;
    if (b->broken)
        return error_set(err, ERR_CLOSED, "a connection for weights has failed before");
    b->broken = !bytes_send(b, b->out_buf, len, err);
    return !b->broken;
}

bool bulk_send(struct bulk *b, uint8_t type, const void *head, size_t head_len, const void *body, size_t body_len, struct error *err)
{
    uint8_t nonce[12];
    uint32_t len = (uint32_t)(head_len + body_len);
    int n = 0, n_head = 0, n_body = 0, n_end = 0;
    BUG_IF(head_len > BULK_RECORD_MAX || body_len > BULK_RECORD_MAX - head_len, "a record of %zu and %zu bytes", head_len, body_len);
    if (b->out_len + SEALED_MAX > OUT_BYTES && !bulk_flush(b, err))
        return false;
    uint8_t *out = b->out_buf + b->out_len, *at = out + HEAD_BYTES;
    memset(out, 0, HEAD_BYTES);
    memcpy(out, &len, sizeof len);
    out[4] = type;
    nonce_next(&b->out, nonce);
    EVP_CIPHER_CTX *c = b->out.cipher;
    bool ok = EVP_EncryptInit_ex(c, NULL, NULL, NULL, nonce) == 1 && EVP_EncryptUpdate(c, NULL, &n, out, HEAD_BYTES) == 1
              && (head_len == 0 || EVP_EncryptUpdate(c, at, &n_head, head, (int)head_len) == 1)
              && (body_len == 0 || EVP_EncryptUpdate(c, at + n_head, &n_body, body, (int)body_len) == 1)
              && EVP_EncryptFinal_ex(c, at + n_head + n_body, &n_end) == 1
              && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, at + len) == 1;
    if (!ok) {
        b->broken = true;
        return error_set(err, ERR_INTERNAL, "a record of %" PRIu32 " bytes cannot be encrypted", len);
    }
    b->out_len += HEAD_BYTES + len + TAG_BYTES;
    return true;
}

/* Bytes of the record that begins what has arrived; 0: not known yet. */
static size_t record_len(const struct bulk *b)
{
    uint32_t len;
    if (b->in_end - b->in_begin < HEAD_BYTES)
        return 0;
    memcpy(&len, b->in_buf + b->in_begin, sizeof len);
    return HEAD_BYTES + (size_t)len + TAG_BYTES;
}

static bool record_is_whole(const struct bulk *b)
{
    size_t len = record_len(b);
    return len > 0 && b->in_end - b->in_begin >= len;
}

static bool record_open(struct bulk *b, uint8_t *record, size_t len)
{
    uint8_t nonce[12], *data = record + HEAD_BYTES;
    int n = 0, n_end = 0;
    nonce_next(&b->in, nonce);
    EVP_CIPHER_CTX *c = b->in.cipher;
    return EVP_DecryptInit_ex(c, NULL, NULL, NULL, nonce) == 1 && EVP_DecryptUpdate(c, NULL, &n, record, HEAD_BYTES) == 1
           && (len == 0 || EVP_DecryptUpdate(c, data, &n, data, (int)len) == 1)
           && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, data + len) == 1 && EVP_DecryptFinal_ex(c, data + len, &n_end) == 1;
}

/* Have a whole record at in_begin. */
static bool record_wait(struct bulk *b, struct error *err)
{
    size_t got;
    while (!record_is_whole(b)) {
        if (record_len(b) > SEALED_MAX)
            return error_set(err, ERR_DATA, "a record of a connection for weights claims %zu bytes; at most %zu are accepted",
                             record_len(b), SEALED_MAX);
        if (IN_BYTES - b->in_begin < SEALED_MAX) {
            memmove(b->in_buf, b->in_buf + b->in_begin, b->in_end - b->in_begin);
            b->in_end -= b->in_begin;
            b->in_begin = 0;
        }
        if (!bytes_receive(b, b->in_buf + b->in_end, IN_BYTES - b->in_end, &got, err))
            return false;
        b->in_end += got;
    }
    return true;
}

bool bulk_receive(struct bulk *b, uint8_t *type, const void **data, size_t *len, struct error *err)
{
    if (b->in_begin == b->in_end)
        b->in_begin = b->in_end = 0;
    if (b->broken)
        return error_set(err, ERR_CLOSED, "a connection for weights has failed before");
    b->broken = true;
    if (!record_wait(b, err))
        return false;
    size_t sealed = record_len(b);
    uint8_t *record = b->in_buf + b->in_begin;
    if (sealed > SEALED_MAX || !record_open(b, record, sealed - HEAD_BYTES - TAG_BYTES))
        return error_set(err, ERR_DATA, "a record of %zu bytes is not one of this connection: its tag is wrong", sealed);
    b->in_begin += sealed;
    b->broken = false;
    *type = record[4];
    *data = record + HEAD_BYTES;
    *len = sealed - HEAD_BYTES - TAG_BYTES;
    return true;
}
