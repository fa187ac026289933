#include "protocol/wire/tls_door.h"
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

struct tls_door {
    SSL_CTX *ctx;
};
struct tls_visit {
    SSL *ssl;
    bool broken;
};

/* An encrypted key is refused: nobody is there to be asked for its password. */
static int password_none(UNUSED char *out, UNUSED int size, UNUSED int writes, UNUSED void *ctx)
{
    return 0;
}

static bool cert_use(SSL_CTX *ctx, const char *pem)
{
    BIO *text = BIO_new_mem_buf(pem, -1);
    X509 *cert = text ? PEM_read_bio_X509(text, NULL, password_none, NULL) : NULL;
    bool ok = cert && SSL_CTX_use_certificate(ctx, cert) == 1;
    X509_free(cert);
    while (ok && (cert = PEM_read_bio_X509(text, NULL, password_none, NULL)) != NULL) {
        ok = SSL_CTX_add1_chain_cert(ctx, cert) == 1;
        X509_free(cert);
    }
    BIO_free(text);
    return ok;
}

static bool key_use(SSL_CTX *ctx, const char *pem)
{
    BIO *text = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = text ? PEM_read_bio_PrivateKey(text, NULL, password_none, NULL) : NULL;
    bool ok = key && SSL_CTX_use_PrivateKey(ctx, key) == 1 && SSL_CTX_check_private_key(ctx) == 1;
    EVP_PKEY_free(key);
    BIO_free(text);
    return ok;
}

struct tls_door *tls_door_new(const char *cert, const char *key, struct error *err)
{
    struct tls_door *d = calloc(1, sizeof *d);
    SSL_CTX *ctx = d ? SSL_CTX_new(TLS_server_method()) : NULL;
    if (!ctx) {
        free(d);
        error_set(err, ERR_NO_MEMORY, "no memory for TLS");
        return NULL;
    }
    d->ctx = ctx;
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    bool ok = SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && cert_use(ctx, cert) && key_use(ctx, key);
    ERR_clear_error();    // the end of the certificates' text is one
    if (ok)
        return d;
    tls_door_free(d);
    error_set(err, ERR_IO, "the server cannot be started; are certificate and key a pair in PEM, the key not encrypted?");
    return NULL;
}

void tls_door_free(struct tls_door *d)
{
    if (!d)
        return;
    SSL_CTX_free(d->ctx);
    free(d);
}

struct tls_visit *tls_visit_new(const struct tls_door *d, int fd)
{
    struct tls_visit *v = calloc(1, sizeof *v);
    if (v && (v->ssl = SSL_new(d->ctx)) && SSL_set_fd(v->ssl, fd) == 1) {
        SSL_set_accept_state(v->ssl);
        return v;
    }
    ERR_clear_error();
    tls_visit_free(v);
    return NULL;
}

void tls_visit_free(struct tls_visit *v)
{
    if (!v)
        return;
    SSL_free(v->ssl);
    free(v);
}

/* What SSL_read or SSL_write has returned, in recv's and send's words. */
static ssize_t result(struct tls_visit *v, int rv, bool *wants_out)
{
    int why = SSL_get_error(v->ssl, rv);
    ERR_clear_error();
    *wants_out = why == SSL_ERROR_WANT_WRITE;
    if (rv > 0)
        return rv;
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    bool waits = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
    v->broken |= !waits;
    errno = waits ? EAGAIN : ECONNRESET;
    return -1;
}

ssize_t tls_visit_recv(struct tls_visit *v, void *data, size_t len, bool *wants_out)
{
    ERR_clear_error();
    return result(v, SSL_read(v->ssl, data, (int)MIN(len, (size_t)INT_MAX)), wants_out);
}

ssize_t tls_visit_send(struct tls_visit *v, const void *data, size_t len, bool *wants_out)
{
    ERR_clear_error();
    return result(v, SSL_write(v->ssl, data, (int)MIN(len, (size_t)INT_MAX)), wants_out);
}

void tls_visit_end(struct tls_visit *v)
{
    if (!v->broken && SSL_is_init_finished(v->ssl))
        SSL_shutdown(v->ssl);
    ERR_clear_error();
}
