#include "protocol/base/mac.h"
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <string.h>

bool mac_sha256(uint8_t out[MAC_SHA256_BYTES], const void *key, size_t key_len, const void *data, size_t len, struct error *err)
{
    unsigned n = 0;
    bool ok = HMAC(EVP_sha256(), key, (int)key_len, data, len, out, &n) && n == MAC_SHA256_BYTES;
    ERR_clear_error();
    return ok || error_set(err, ERR_UNSUPPORTED, "OpenSSL offers no HMAC with SHA-256 here");
}

bool key_expand(void *out, size_t len, const void *salt, size_t salt_len, const void *key, size_t key_len, const char *info,
                struct error *err)
{
    OSSL_PARAM how[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt, salt_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)key, key_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info, strlen(info)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *hkdf = EVP_KDF_fetch(NULL, OSSL_KDF_NAME_HKDF, NULL);
    EVP_KDF_CTX *ctx = hkdf ? EVP_KDF_CTX_new(hkdf) : NULL;
    bool ok = ctx && EVP_KDF_derive(ctx, out, len, how) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(hkdf);
    ERR_clear_error();
    return ok || error_set(err, ERR_UNSUPPORTED, "OpenSSL offers no HKDF with SHA-256 here");
}
