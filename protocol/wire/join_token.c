#include "protocol/wire/join_token.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <mbedtls/ecp.h>
#include <mbedtls/hkdf.h>
#include <mbedtls/md.h>
#include <mbedtls/pk.h>
#include <mbedtls/version.h>
#include <mbedtls/x509_crt.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"

#define SECRET_BYTES 32    // of a private key of P-256

static int random_fill(UNUSED void *ctx, unsigned char *out, size_t len)
{
    return getrandom(out, len, 0) == (ssize_t)len ? 0 : MBEDTLS_ERR_ECP_RANDOM_FAILED;
}

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

/* Bytes that follow from a token, and nothing else from them; info says what they are for. 0, or mbedTLS's error. */
static int token_expand(unsigned char *out, size_t len, const char *info, const char *token)
{
    static const char salt[] = "rollcall join token";
    return mbedtls_hkdf(mbedtls_md_info_from_type(MBEDTLS_MD_SHA256), (const void *)salt, sizeof salt - 1, (const void *)token,
                        JOIN_TOKEN_LEN, (const void *)info, strlen(info), out, len);
}

bool join_token_id(char id[JOIN_TOKEN_ID_LEN + 1], const char *token, struct error *err)
{
    unsigned char bytes[JOIN_TOKEN_ID_LEN / 2];
    int rv = token_expand(bytes, sizeof bytes, "name", token);
    if (rv != 0)
        return error_set(err, ERR_INTERNAL, "cannot make a name for the join token (mbedtls -0x%04x)", (unsigned)-rv);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* Write the private key for a group of the order order_n: 48 bytes of HKDF taken modulo n - 1, plus 1 (FIPS 186-4, B.4.1: 128 bits more than
 * n leave no bias that matters). 0, or mbedTLS's error. */
static int secret_derive(unsigned char secret[SECRET_BYTES], const mbedtls_mpi *order_n, const char *token)
{
    unsigned char bytes[48];
    mbedtls_mpi n, d;
    mbedtls_mpi_init(&n);
    mbedtls_mpi_init(&d);
    int rv = token_expand(bytes, sizeof bytes, "P-256 node key 1", token);
    if (rv == 0)
        rv = mbedtls_mpi_read_binary(&d, bytes, sizeof bytes);
    if (rv == 0)
        rv = mbedtls_mpi_sub_int(&n, order_n, 1);
    if (rv == 0)
        rv = mbedtls_mpi_mod_mpi(&d, &d, &n);
    if (rv == 0)
        rv = mbedtls_mpi_add_int(&d, &d, 1);
    if (rv == 0)
        rv = mbedtls_mpi_write_binary(&d, secret, SECRET_BYTES);
    mbedtls_mpi_free(&d);
    mbedtls_mpi_free(&n);
    return rv;
}

/* Compute the public key of a pair that has its group and private key. mbedTLS 3 hides the members that 2 wants here. */
static int public_derive(mbedtls_ecp_keypair *k)
{
#if MBEDTLS_VERSION_NUMBER >= 0x03060000
    return mbedtls_ecp_keypair_calc_public(k, random_fill, NULL);
#else
    return mbedtls_ecp_mul(&k->grp, &k->Q, &k->d, &k->grp.G, random_fill, NULL);
#endif
}

static int key_derive(mbedtls_pk_context *pk, const char *token)
{
    unsigned char secret[SECRET_BYTES];
    mbedtls_ecp_group group;
    mbedtls_ecp_group_init(&group);
    int rv = mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_SECP256R1);
    if (rv == 0)
        rv = secret_derive(secret, &group.N, token);
    if (rv == 0)
        rv = mbedtls_pk_setup(pk, mbedtls_pk_info_from_type(MBEDTLS_PK_ECKEY));
    if (rv == 0)
        rv = mbedtls_ecp_read_key(MBEDTLS_ECP_DP_SECP256R1, mbedtls_pk_ec(*pk), secret, sizeof secret);
    if (rv == 0)
        rv = public_derive(mbedtls_pk_ec(*pk));
    mbedtls_ecp_group_free(&group);
    return rv;
}

static int serial_set(mbedtls_x509write_cert *cert)
{
#if MBEDTLS_VERSION_NUMBER >= 0x03060000
    unsigned char one[] = { 1 };
    return mbedtls_x509write_crt_set_serial_raw(cert, one, sizeof one);
#else
    mbedtls_mpi one;
    mbedtls_mpi_init(&one);
    int rv = mbedtls_mpi_lset(&one, 1);
    if (rv == 0)
        rv = mbedtls_x509write_crt_set_serial(cert, &one);
    mbedtls_mpi_free(&one);
    return rv;
#endif
}

/* A certificate for the key of subject, signed by that of issuer; both have the one name. 0, or mbedTLS's error. */
static int cert_write(char *out, size_t size, mbedtls_pk_context *subject, mbedtls_pk_context *issuer)
{
    static const char name[] = "CN=" JOIN_SERVER_NAME;
    mbedtls_x509write_cert cert;
    int rv;
    mbedtls_x509write_crt_init(&cert);
    mbedtls_x509write_crt_set_version(&cert, MBEDTLS_X509_CRT_VERSION_3);
    mbedtls_x509write_crt_set_md_alg(&cert, MBEDTLS_MD_SHA256);
    mbedtls_x509write_crt_set_subject_key(&cert, subject);
    mbedtls_x509write_crt_set_issuer_key(&cert, issuer);
    /* Without an end (RFC 5280, 4.1.2.5): a token is good as long as its file exists, and hosts' clocks need not agree. */
    if ((rv = serial_set(&cert)) == 0 && (rv = mbedtls_x509write_crt_set_subject_name(&cert, name)) == 0
        && (rv = mbedtls_x509write_crt_set_issuer_name(&cert, name)) == 0
        && (rv = mbedtls_x509write_crt_set_validity(&cert, "19700101000000", "99991231235959")) == 0
        && (rv = mbedtls_x509write_crt_set_basic_constraints(&cert, 1, -1)) == 0)    // -1: one may lead to another
        rv = mbedtls_x509write_crt_pem(&cert, (unsigned char *)out, size, random_fill, NULL);
    mbedtls_x509write_crt_free(&cert);
    return rv;
}

/* With past the certificates shown are two: the token's own, and one for the same key that the past token's has signed. A side that knows the token
 * trusts the first; one that knows only the past one is led there by the second (RFC 5280, 3.2: a self-issued certificate for a change of keys). */
bool join_identity_make(struct join_identity *out, const char *token, const char *past, struct error *err)
{
    mbedtls_pk_context key, past_key;
    char by_past[2048] = "", past_own[2048] = "";
    int rv;
    mbedtls_pk_init(&key);
    mbedtls_pk_init(&past_key);
    if ((rv = key_derive(&key, token)) == 0)
        rv = cert_write(out->cert, sizeof out->cert, &key, &key);
    if (rv == 0 && past)
        rv = key_derive(&past_key, past);
    if (rv == 0 && past && (rv = cert_write(by_past, sizeof by_past, &key, &past_key)) == 0)
        rv = cert_write(past_own, sizeof past_own, &past_key, &past_key);
    if (rv == 0)
        rv = mbedtls_pk_write_key_pem(&key, (unsigned char *)out->key, sizeof out->key);
    mbedtls_pk_free(&key);
    mbedtls_pk_free(&past_key);
    if (rv != 0)
        return error_set(err, ERR_INTERNAL, "cannot make a TLS identity from the join token (mbedtls -0x%04x)", (unsigned)-rv);
    snprintf(out->trusted, sizeof out->trusted, "%s%s", out->cert, past_own);
    size_t len = strlen(out->cert);
    snprintf(out->cert + len, sizeof out->cert - len, "%s", by_past);    // each has about 600 bytes
    return true;
}
