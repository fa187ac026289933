#include "protocol/wire/join_token.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/mac.h"

bool join_token_check(char *text, struct error *err)
{
    char *from = text + strspn(text, " \t\r\n");
    size_t len = strcspn(from, " \t\r\n");
    if (from[len + strspn(from + len, " \t\r\n")] != 0 || len != JOIN_TOKEN_LEN)
        return error_set(err, ERR_DATA, "a join token is %d hexadecimal digits", JOIN_TOKEN_LEN);
    memmove(text, from, len);
    text[len] = 0;
    for (size_t i = 0; i < len; i++)
        if (!isxdigit((unsigned char)text[i]) || isupper((unsigned char)text[i]))
            return error_set(err, ERR_DATA, "a join token is %d hexadecimal digits in lower case", JOIN_TOKEN_LEN);
    return true;
}

bool join_token_write(const char *path, const char *token, struct error *err)
{
    char text[JOIN_TOKEN_LEN + 2];
    int n = snprintf(text, sizeof text, "%.*s\n", JOIN_TOKEN_LEN, token);
    return file_write_secret(path, text, (size_t)n, err);
}

bool join_token_new(char token[JOIN_TOKEN_LEN + 1], struct error *err)
{
    unsigned char bytes[JOIN_TOKEN_LEN / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return error_errno(err, "cannot get random bytes for a join token");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

bool join_token_make(const char *path, struct error *err)
{
    char token[JOIN_TOKEN_LEN + 1];
    if (path_exists(path))
        return join_token_read(token, path, err);
    return join_token_new(token, err) && join_token_write(path, token, err);
}

bool join_token_read(char token[JOIN_TOKEN_LEN + 1], const char *path, struct error *err)
{
    struct stat st;
    char text[JOIN_TOKEN_LEN + 64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, "cannot open the join token '%s'", path);
    bool private = fstat(fd, &st) == 0 && (st.st_mode & 077) == 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (!private)
        return error_set(err, ERR_REFUSED, "others can read the join token '%s' (mode %03o); make it chmod 600", path,
                         (unsigned)(st.st_mode & 0777));
    if (n < 0)
        return error_errno(err, "cannot read the join token '%s'", path);
    if (!join_token_check(text, err))
        return error_wrap(err, "'%s'", path);
    memcpy(token, text, JOIN_TOKEN_LEN + 1);
    return true;
}

/* Bytes that follow from a token, and nothing else from them; info says what they are for. */
static bool token_expand(void *out, size_t len, const char *info, const char *token, struct error *err)
{
    static const char salt[] = "rollcall join token";
    return key_expand(out, len, salt, sizeof salt - 1, token, JOIN_TOKEN_LEN, info, err);
}

bool join_token_id(char id[JOIN_TOKEN_ID_LEN + 1], const char *token, struct error *err)
{
    unsigned char bytes[JOIN_TOKEN_ID_LEN / 2];
    if (!token_expand(bytes, sizeof bytes, "name", token, err))
        return error_wrap(err, "cannot make a name for the join token");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* The private key for a group of this order: 48 bytes of HKDF taken modulo order - 1, plus 1 (FIPS 186-4, B.4.1: 128 bits more than
 * the order leave no bias that matters). */
static bool secret_derive(BIGNUM *secret, const BIGNUM *order, const unsigned char bytes[48], BN_CTX *work)
{
    BIGNUM *n = BN_dup(order);
    bool ok = n && BN_sub_word(n, 1) && BN_bin2bn(bytes, 48, secret) && BN_mod(secret, secret, n, work) && BN_add_word(secret, 1);
    BN_free(n);
    return ok;
}

/* The key pair with this private key. */
static EVP_PKEY *pair_make(const EC_GROUP *group, const BIGNUM *secret, BN_CTX *work)
{
    unsigned char public[65];    // 4, then both coordinates
    EVP_PKEY *key = NULL;
    EC_POINT *point = EC_POINT_new(group);
    OSSL_PARAM_BLD *what = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    OSSL_PARAM *all = NULL;
    if (point && what && ctx && EC_POINT_mul(group, point, secret, NULL, NULL, work)
        && EC_POINT_point2oct(group, point, POINT_CONVERSION_UNCOMPRESSED, public, sizeof public, work) == sizeof public
        && OSSL_PARAM_BLD_push_utf8_string(what, OSSL_PKEY_PARAM_GROUP_NAME, SN_X9_62_prime256v1, 0)
        && OSSL_PARAM_BLD_push_BN(what, OSSL_PKEY_PARAM_PRIV_KEY, secret)
        && OSSL_PARAM_BLD_push_octet_string(what, OSSL_PKEY_PARAM_PUB_KEY, public, sizeof public) && (all = OSSL_PARAM_BLD_to_param(what))
        && EVP_PKEY_fromdata_init(ctx) == 1 && EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_KEYPAIR, all) != 1)
        key = NULL;
    OSSL_PARAM_free(all);
    OSSL_PARAM_BLD_free(what);
    EVP_PKEY_CTX_free(ctx);
    EC_POINT_free(point);
    return key;
}

/* NULL: see err. */
static EVP_PKEY *key_derive(const char *token, struct error *err)
{
    unsigned char bytes[48];
    if (!token_expand(bytes, sizeof bytes, "P-256 node key 1", token, err))
        return NULL;
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    BN_CTX *work = BN_CTX_secure_new();
    BIGNUM *secret = BN_secure_new();
    EVP_PKEY *key = group && work && secret && secret_derive(secret, EC_GROUP_get0_order(group), bytes, work)
                        ? pair_make(group, secret, work)
                        : NULL;
    BN_clear_free(secret);
    BN_CTX_free(work);
    EC_GROUP_free(group);
    explicit_bzero(bytes, sizeof bytes);
    if (!key)
        error_set(err, ERR_UNSUPPORTED, "OpenSSL offers no P-256 here");
    return key;
}

/* What was written, as a text with its NUL. False: it does not fit, or nothing was. */
static bool text_take(BIO *from, char *out, size_t size)
{
    char *data;
    long n = BIO_get_mem_data(from, &data);
    if (n <= 0 || (size_t)n >= size)
        return false;
    memcpy(out, data, (size_t)n);
    out[n] = 0;
    return true;
}

static bool key_write(char *out, size_t size, EVP_PKEY *key)
{
    BIO *text = BIO_new(BIO_s_mem());
    bool ok = text && PEM_write_bio_PrivateKey_traditional(text, key, NULL, NULL, 0, NULL, NULL) == 1    // RFC 5915's form
              && text_take(text, out, size);
    BIO_free(text);
    return ok;
}

/* The name, the dates and the use of a certificate, which are those of all. It has no end (RFC 5280, 4.1.2.5): a token is good as long as
 * its file exists, and hosts' clocks need not agree. One may lead to another, so each is an authority's. */
static bool cert_fill(X509 *cert)
{
    BASIC_CONSTRAINTS authority = { .ca = 0xff };    // TRUE in DER
    X509_NAME *name = X509_get_subject_name(cert);
    return X509_set_version(cert, X509_VERSION_3) == 1 && ASN1_INTEGER_set(X509_get_serialNumber(cert), 1) == 1
           && X509_NAME_add_entry_by_NID(name, NID_commonName, V_ASN1_UTF8STRING, (const void *)JOIN_SERVER_NAME, -1, -1, 0) == 1
           && X509_set_issuer_name(cert, name) == 1 && ASN1_TIME_set_string_X509(X509_getm_notBefore(cert), "19700101000000Z") == 1
           && ASN1_TIME_set_string_X509(X509_getm_notAfter(cert), "99991231235959Z") == 1
           && X509_add1_ext_i2d(cert, NID_basic_constraints, &authority, 1, X509V3_ADD_DEFAULT) == 1;
}

/* A certificate for the key of subject, signed by that of issuer; both have the one name. */
static bool cert_write(char *out, size_t size, EVP_PKEY *subject, EVP_PKEY *issuer)
{
    X509 *cert = X509_new();
    BIO *text = BIO_new(BIO_s_mem());
    bool ok = cert && text && cert_fill(cert) && X509_set_pubkey(cert, subject) == 1 && X509_sign(cert, issuer, EVP_sha256()) > 0
              && PEM_write_bio_X509(text, cert) == 1 && text_take(text, out, size);
    BIO_free(text);
    X509_free(cert);
    return ok;
}

/* With past the certificates shown are two: the token's own, and one for the same key that the past token's has signed. A side that knows the token
 * trusts the first; one that knows only the past one is led there by the second (RFC 5280, 3.2: a self-issued certificate for a change of keys). */
bool join_identity_make(struct join_identity *out, const char *token, const char *past, struct error *err)
{
    char by_past[2048] = "", past_own[2048] = "";
    EVP_PKEY *key = key_derive(token, err), *past_key = key && past ? key_derive(past, err) : NULL;
    bool derived = key && (past_key || !past);
    bool ok = derived && cert_write(out->cert, sizeof out->cert, key, key) && key_write(out->key, sizeof out->key, key)
              && (!past
                  || (cert_write(by_past, sizeof by_past, key, past_key) && cert_write(past_own, sizeof past_own, past_key, past_key)));
    EVP_PKEY_free(key);
    EVP_PKEY_free(past_key);
    ERR_clear_error();
    if (!ok)
        return derived ? error_set(err, ERR_UNSUPPORTED, "OpenSSL cannot make a TLS identity from the join token here")
                       : error_wrap(err, "cannot make a TLS identity from the join token");
    snprintf(out->trusted, sizeof out->trusted, "%s%s", out->cert, past_own);
    size_t len = strlen(out->cert);
    snprintf(out->cert + len, sizeof out->cert - len, "%s", by_past);    // each has about 600 bytes
    return true;
}
