/* Codes and keys from a secret, by the RFCs' own examples. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/mac.h"

static size_t bytes_of(const char *hex, uint8_t *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static void codes_are_those_of_rfc_4231(void **state)
{
    static const struct {
        const char *key, *data, *code;
    } cases[] = {
        { "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "4869205468657265",
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
        { "4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        uint8_t key[64], data[64], code[64], out[MAC_SHA256_BYTES];
        size_t key_len = bytes_of(cases[i].key, key), len = bytes_of(cases[i].data, data);
        assert_int_equal(bytes_of(cases[i].code, code), sizeof out);
        assert_true(mac_sha256(out, key, key_len, data, len, &err));
        assert_memory_equal(out, code, sizeof out);
    }
}

static void keys_are_those_of_rfc_5869(void **state)
{
    static const struct {
        const char *key, *salt, *info, *out;
    } cases[] = {
        /* A.3; A.1 has bytes above 127 in its info, which is a text here */
        { "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "", "",
          "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8" },
        /* by Python's hmac, as RFC 5869 says */
        { "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "000102030405060708090a0b0c", "what it is for",
          "2e72d8519da783b4fc0ab4159f91a63232c676ffacabe7b90ca7f5faebe220d3e91628bc4b546a349cfd" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        uint8_t key[64], salt[64], want[64], out[64];
        size_t key_len = bytes_of(cases[i].key, key), salt_len = bytes_of(cases[i].salt, salt), len = bytes_of(cases[i].out, want);
        assert_true(key_expand(out, len, salt, salt_len, key, key_len, cases[i].info, &err));
        assert_memory_equal(out, want, len);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_rfc_4231),
        cmocka_unit_test(keys_are_those_of_rfc_5869),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
