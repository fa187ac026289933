/* A link's bytes: from the other side through `from` (a BIO in memory) and SSL_read into `in`, which is cut into messages; messages for it wait
 * in `out` and go, a record at a time, through SSL_write into `to`, whose bytes the owner sends. */
#include "protocol/wire/tls_link.h"
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "protocol/base/buf.h"
#include "protocol/wire/message.h"

#define RECORD_BYTES 16384    // RFC 5246, 6.2.1
#define LENGTH_BYTES 8        // before each message
#define GREETING_BYTES 8
#define FRAME_MAX (LENGTH_BYTES + sizeof((struct tls_trace *)0)->byte + MSG_BYTES_MAX)
#define IN_MAX (FRAME_MAX + ((size_t)1 << 20))    // a message, and what has come with its end
#define OUT_MAX ((size_t)2 * FRAME_MAX)           // of messages that wait
#define KEPT_BYTES ((size_t)1 << 16)              // of a buffer that is empty
#define TRUSTED_MAX 4
#define SP_REQ 0x30
#define SP_REP 0x31

struct tls_side {
    SSL_CTX *ctx;
    enum tls_role role;
};
struct keys {    // what a context trusts; it owns this
    EVP_PKEY *key[TRUSTED_MAX];
    int n;
};
struct tls_link {
    SSL *ssl;
    BIO *from, *to;    // the SSL's
    enum tls_role role;
    bool shaken, greeted;    // the handshake is done; the other side's greeting has come
    bool strange;            // it has failed, since one side does not accept the other's certificates
    struct buf in, out;
    size_t in_begin, out_begin;    // bytes of them that are done with
};

/* ---- a side ---- */

static int keys_index;    // of the keys in a context
static CRYPTO_ONCE once = CRYPTO_ONCE_STATIC_INIT;

static void keys_free(UNUSED void *parent, void *ptr, UNUSED CRYPTO_EX_DATA *ad, UNUSED int index, UNUSED long argl, UNUSED void *argp)
{
    struct keys *k = ptr;
    for (int i = 0; k && i < k->n; i++)
        EVP_PKEY_free(k->key[i]);
    free(k);
}

static void index_make(void)
{
    keys_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, keys_free);
}

/* Is this side's certificate for its key signed by a key that we trust? Names, dates and the like say nothing here: all are alike, and a
 * certificate holds as long as its token. That the side has the key, the handshake shows. */
static int cert_check(X509_STORE_CTX *store, UNUSED void *arg)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    const struct keys *trusted = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), keys_index);
    X509 *own = X509_STORE_CTX_get0_cert(store);
    EVP_PKEY *key = own ? X509_get0_pubkey(own) : NULL;
    STACK_OF(X509) *shown = X509_STORE_CTX_get0_untrusted(store);
    bool good = false;
    for (int c = -1; key && !good && c < sk_X509_num(shown); c++) {
        X509 *cert = c < 0 ? own : sk_X509_value(shown, c);
        EVP_PKEY *its = X509_get0_pubkey(cert);
        if (!its || EVP_PKEY_eq(its, key) != 1)
            continue;
        for (int i = 0; !good && i < trusted->n; i++)
            good = X509_verify(cert, trusted->key[i]) == 1;
    }
    X509_STORE_CTX_set_error(store, good ? X509_V_OK : X509_V_ERR_CERT_UNTRUSTED);
    ERR_clear_error();
    return good;
}

/* Each certificate in the text, in turn. */
static bool certs_read(const char *pem, bool (*use)(void *ctx, X509 *cert, int i), void *ctx)
{
    BIO *text = BIO_new_mem_buf(pem, -1);
    bool ok = text != NULL;
    int n = 0;
    for (X509 *cert; ok && (cert = PEM_read_bio_X509(text, NULL, NULL, NULL)) != NULL; n++) {
        ok = use(ctx, cert, n);
        X509_free(cert);
    }
    BIO_free(text);
    ERR_clear_error();    // the end of the text is one
    return ok && n > 0;
}

static bool cert_trust(void *ctx, X509 *cert, UNUSED int i)
{
    struct keys *k = ctx;
    return k->n < TRUSTED_MAX && (k->key[k->n] = X509_get_pubkey(cert)) != NULL && ++k->n > 0;
}

static bool cert_show(void *ctx, X509 *cert, int i)
{
    return i == 0 ? SSL_CTX_use_certificate(ctx, cert) == 1 : SSL_CTX_add1_chain_cert(ctx, cert) == 1;
}

static bool key_use(SSL_CTX *ctx, const char *pem)
{
    BIO *text = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = text ? PEM_read_bio_PrivateKey(text, NULL, NULL, NULL) : NULL;
    bool ok = key && SSL_CTX_use_PrivateKey(ctx, key) == 1;
    EVP_PKEY_free(key);
    BIO_free(text);
    return ok;
}

struct tls_side *tls_side_new(const struct join_identity *id, enum tls_role role, struct error *err)
{
    struct tls_side *s = calloc(1, sizeof *s);
    struct keys *k = calloc(1, sizeof *k);
    SSL_CTX *ctx = CRYPTO_THREAD_run_once(&once, index_make) == 1 ? SSL_CTX_new(TLS_method()) : NULL;
    if (!s || !k || !ctx || keys_index < 0 || SSL_CTX_set_ex_data(ctx, keys_index, k) != 1) {
        free(s);
        free(k);
        SSL_CTX_free(ctx);
        error_set(err, ERR_NO_MEMORY, "no memory for TLS");
        return NULL;
    }
    *s = (struct tls_side){ .ctx = ctx, .role = role };
    /* Nobody is let in by an earlier connection: the token may have been replaced since. */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, cert_check, NULL);
    bool ok = SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION) == 1
              && SSL_CTX_set1_groups_list(ctx, "P-256") == 1    // the certificates' own; older nodes would rather have a slower one
              && certs_read(id->trusted, cert_trust, k) && certs_read(id->cert, cert_show, ctx) && key_use(ctx, id->key);
    ERR_clear_error();
    if (ok)
        return s;
    tls_side_free(s);
    error_set(err, ERR_UNSUPPORTED, "OpenSSL cannot do TLS here with the join token's certificates");
    return NULL;
}

void tls_side_free(struct tls_side *s)
{
    if (!s)
        return;
    SSL_CTX_free(s->ctx);
    free(s);
}

/* ---- a link ---- */

void tls_link_free(struct tls_link *l)
{
    if (!l)
        return;
    SSL_free(l->ssl);
    buf_release(&l->in);
    buf_release(&l->out);
    free(l);
}

/* Is this why one side does not accept the other's certificates, as it sees it itself or is told? */
static bool is_about_certificates(int reason)
{
    return reason == SSL_R_CERTIFICATE_VERIFY_FAILED || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE
           || reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN || reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA;
}

/* What SSL_read, SSL_write or SSL_do_handshake has returned: does it only want more bytes? */
static bool wants_more(struct tls_link *l, int rv, struct error *err)
{
    int why = SSL_get_error(l->ssl, rv);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return true;
    const char *reason = why == SSL_ERROR_ZERO_RETURN ? "the other side has ended it" : ERR_reason_error_string(ERR_peek_error());
    l->strange = !l->greeted && is_about_certificates(ERR_GET_REASON(ERR_peek_error()));
    error_set(err, why == SSL_ERROR_ZERO_RETURN ? ERR_CLOSED : ERR_REFUSED, "TLS: %s", reason ? reason : "the connection is broken");
    ERR_clear_error();
    return false;
}

static void greet(struct tls_link *l)
{
    const uint8_t hello[GREETING_BYTES] = { 0, 'S', 'P', 0, 0, l->role == TLS_ANSWERS ? SP_REP : SP_REQ, 0, 0 };
    SSL_write(l->ssl, hello, sizeof hello);    // into memory, before all else
    ERR_clear_error();
}

static bool shake(struct tls_link *l, struct error *err)
{
    int rv = SSL_do_handshake(l->ssl);
    if (rv != 1)
        return wants_more(l, rv, err);
    l->shaken = true;
    greet(l);
    return true;
}

struct tls_link *tls_link_new(const struct tls_side *s)
{
    struct error err;
    struct tls_link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->role = s->role;
    l->in.max = IN_MAX;
    l->out.max = OUT_MAX;
    l->ssl = SSL_new(s->ctx);
    l->from = BIO_new(BIO_s_mem());
    l->to = BIO_new(BIO_s_mem());
    if (!l->ssl || !l->from || !l->to) {
        BIO_free(l->from);
        BIO_free(l->to);
        SSL_free(l->ssl);
        free(l);
        return NULL;
    }
    BIO_set_mem_eof_return(l->from, -1);    // no bytes: more will come
    SSL_set_bio(l->ssl, l->from, l->to);
    if (s->role == TLS_ANSWERS) {
        SSL_set_accept_state(l->ssl);
        return l;
    }
    SSL_set_connect_state(l->ssl);
    if (shake(l, &err))    // it speaks first
        return l;
    tls_link_free(l);
    return NULL;
}

static bool greeting_check(struct tls_link *l, struct error *err)
{
    const uint8_t want[GREETING_BYTES] = { 0, 'S', 'P', 0, 0, l->role == TLS_ANSWERS ? SP_REQ : SP_REP, 0, 0 };
    if (l->in.len - l->in_begin < GREETING_BYTES)
        return true;
    if (memcmp(l->in.data + l->in_begin, want, GREETING_BYTES) != 0)
        return error_set(err, ERR_DATA, "the other side does not speak this protocol");
    l->in_begin += GREETING_BYTES;
    l->greeted = true;
    return true;
}

/* Forget what has been used; then len more fit. */
static bool room_make(struct buf *b, size_t *begin, size_t len)
{
    if (*begin == b->len) {
        *begin = 0;
        if (b->cap > KEPT_BYTES)
            buf_release(b);
        buf_clear(b);
    } else if (*begin > b->len / 2) {
        memmove(b->data, b->data + *begin, b->len - *begin);
        b->len -= *begin;
        *begin = 0;
    }
    return buf_reserve(b, len) != NULL;
}

bool tls_link_take(struct tls_link *l, const void *data, size_t len, struct error *err)
{
    if (BIO_write(l->from, data, (int)len) != (int)len)
        return error_set(err, ERR_NO_MEMORY, "no memory for %zu bytes from another host", len);
    if (!l->shaken && !shake(l, err))
        return false;
    while (l->shaken) {
        if (!room_make(&l->in, &l->in_begin, RECORD_BYTES))
            return error_set(err, ERR_FULL, "no room for a message of another host");
        int n = SSL_read(l->ssl, l->in.data + l->in.len, RECORD_BYTES);
        if (n <= 0)
            return wants_more(l, n, err);
        l->in.len += (size_t)n;
        if (!l->greeted && !greeting_check(l, err))
            return false;
    }
    return true;
}

bool tls_link_is_strange(const struct tls_link *l)
{
    return l->strange;
}

bool tls_link_is_in(const struct tls_link *l)
{
    return l->greeted;
}

static uint64_t be_read(const void *data, int n)
{
    const uint8_t *byte = data;
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v = v << 8 | byte[i];
    return v;
}

static void be_write(uint8_t *out, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(v >> (8 * (n - 1 - i)));
}

/* The numbers before a message: the last one has its highest bit set, and is the asker's. */
static bool trace_read(struct tls_message *m)
{
    do {
        if (m->len < 4 || m->trace.len == sizeof m->trace.byte)
            return false;
        memcpy(m->trace.byte + m->trace.len, m->data, 4);
        m->trace.len += 4;
        m->data += 4;
        m->len -= 4;
    } while (!(m->trace.byte[m->trace.len - 4] & 0x80));
    return true;
}

bool tls_link_next(struct tls_link *l, struct tls_message *m, bool *came, struct error *err)
{
    size_t there = l->in.len - l->in_begin;
    *came = false;
    if (!l->greeted || there < LENGTH_BYTES)
        return true;
    uint64_t len = be_read(l->in.data + l->in_begin, LENGTH_BYTES);
    if (len > FRAME_MAX - LENGTH_BYTES)
        return error_set(err, ERR_DATA, "a message of another host is too long");
    if (there - LENGTH_BYTES < len)
        return true;
    *m = (struct tls_message){ .data = (const uint8_t *)l->in.data + l->in_begin + LENGTH_BYTES, .len = (size_t)len };
    if (!trace_read(m) || m->len > MSG_BYTES_MAX)
        return error_set(err, ERR_DATA, "a message of another host does not say whose it is");
    l->in_begin += LENGTH_BYTES + (size_t)len;
    *came = true;
    return true;
}

bool tls_link_say(struct tls_link *l, const struct tls_trace *trace, const void *data, size_t len)
{
    uint8_t length[LENGTH_BYTES];
    be_write(length, trace->len + len, LENGTH_BYTES);
    return room_make(&l->out, &l->out_begin, LENGTH_BYTES + trace->len + len) && buf_add(&l->out, length, LENGTH_BYTES)
           && buf_add(&l->out, trace->byte, trace->len) && buf_add(&l->out, data, len);
}

size_t tls_link_waiting(const struct tls_link *l)
{
    return l->out.len - l->out_begin;
}

const uint8_t *tls_link_bytes(struct tls_link *l, size_t *len)
{
    char *data;
    size_t n = MIN(tls_link_waiting(l), (size_t)RECORD_BYTES);
    if (BIO_pending(l->to) == 0 && l->greeted && n > 0 && SSL_write(l->ssl, l->out.data + l->out_begin, (int)n) == (int)n)
        l->out_begin += n;
    ERR_clear_error();
    *len = (size_t)BIO_get_mem_data(l->to, &data);
    return *len ? (const uint8_t *)data : NULL;
}

void tls_link_sent(struct tls_link *l, size_t n)
{
    uint8_t gone[4096];
    while (n > 0) {
        int k = BIO_read(l->to, gone, (int)MIN(n, sizeof gone));
        if (k <= 0)
            break;
        n -= (size_t)k;
    }
}

bool tls_link_send(struct tls_link *l, int fd)
{
    size_t len;
    for (const uint8_t *data; (data = tls_link_bytes(l, &len)) != NULL;) {
        ssize_t n = send(fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        tls_link_sent(l, (size_t)n);
        if ((size_t)n < len)
            return true;
    }
    return true;
}
