/* tags: valgrind
 * A link's bytes, between two ends in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/wire/message.h"
#include "protocol/wire/tls_link.h"

#define TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define PAST "2123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct tls_link *link_make(enum tls_role role, const char *token, const char *past)
{
    struct error err;
    static struct join_identity id;
    assert_true(join_identity_make(&id, token, past, &err));
    struct tls_side *side = tls_side_new(&id, role, &err);
    assert_non_null(side);
    struct tls_link *l = tls_link_new(side);
    assert_non_null(l);
    tls_side_free(side);
    return l;
}

/* Carry what one end has for the other, piece bytes at a time. False: the other refuses it. */
static bool carry(struct tls_link *from, struct tls_link *to, size_t piece, bool *any)
{
    struct error err;
    size_t len;
    bool ok = true;
    for (const uint8_t *b; ok && (b = tls_link_bytes(from, &len)) != NULL; *any = true) {
        len = MIN(len, piece);
        ok = tls_link_take(to, b, len, &err);
        tls_link_sent(from, len);
    }
    return ok;
}

/* Until both ends have nothing to say. False: one refuses the other. */
static bool settle(struct tls_link *a, struct tls_link *b, size_t piece)
{
    for (bool any = true; any;) {
        any = false;
        if (!carry(a, b, piece, &any) || !carry(b, a, piece, &any))
            return false;
    }
    return true;
}

static void both_ends_meet_when_each_trusts_a_certificate_of_the_other(void **state)
{
    static const struct {
        const char *asks, *asks_past, *answers, *answers_past;
        bool meet;
        const char *why;
    } cases[] = {
        { TOKEN, NULL, TOKEN, NULL, true, "the same token" },
        { TOKEN, NULL, OTHER, NULL, false, "another one" },
        { TOKEN, NULL, TOKEN, PAST, true, "the head's has just replaced another" },
        { PAST, NULL, TOKEN, PAST, true, "which is still good" },
        { OTHER, NULL, TOKEN, PAST, false, "and a third is not" },
        { TOKEN, PAST, PAST, NULL, true, "a node with two, and a head that knows only the older" },
        { TOKEN, PAST, OTHER, NULL, false, "or neither" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tls_link *asks = link_make(TLS_ASKS, cases[i].asks, cases[i].asks_past);
        struct tls_link *answers = link_make(TLS_ANSWERS, cases[i].answers, cases[i].answers_past);
        bool ok = settle(asks, answers, 1000);
        if ((ok && tls_link_is_in(asks) && tls_link_is_in(answers)) != cases[i].meet)
            fail_msg("%s", cases[i].why);
        tls_link_free(asks);
        tls_link_free(answers);
    }
}

/* Identities that the versions before 0.3 made of TOKEN, and of FOLLOWS as it replaced TOKEN, with mbedTLS 2. */
#define FOLLOWS "5be4a1c09d7f3e2286b1d4c7f8a90e3312cd56ab78ef90123456789abcdef012"
static const struct join_identity old_id = {
    .cert = "-----BEGIN CERTIFICATE-----\n"
            "MIIBLTCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
            "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
            "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEjhr/8df1tWI/76zV\n"
            "YbHGmpwkq/angX0l9VF/HgRmkrClCvD8We+TzHIGxJpn/VwRI6B6myG/lJ9fVA90\n"
            "7DsgL6MTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0gAMEUCIF1n\n"
            "2NcuCWBSdpg4M1XSpolKBd+6CE+MG1O6IqcB4QHfAiEAnyLhBrfZv/OxfCAggld4\n"
            "KGOjUWd7ADTBslIO+Fp/tU0=\n"
            "-----END CERTIFICATE-----\n",
    .key = "-----BEGIN EC PRIVATE KEY-----\n"
           "MHcCAQEEIDxiOuIZXp8QwNb2RH3Usikpdi8rYoRRGFLiD8mnPNc3oAoGCCqGSM49\n"
           "AwEHoUQDQgAEjhr/8df1tWI/76zVYbHGmpwkq/angX0l9VF/HgRmkrClCvD8We+T\n"
           "zHIGxJpn/VwRI6B6myG/lJ9fVA907DsgLw==\n"
           "-----END EC PRIVATE KEY-----\n",
    .trusted = "-----BEGIN CERTIFICATE-----\n"
               "MIIBLTCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
               "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
               "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEjhr/8df1tWI/76zV\n"
               "YbHGmpwkq/angX0l9VF/HgRmkrClCvD8We+TzHIGxJpn/VwRI6B6myG/lJ9fVA90\n"
               "7DsgL6MTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0gAMEUCIF1n\n"
               "2NcuCWBSdpg4M1XSpolKBd+6CE+MG1O6IqcB4QHfAiEAnyLhBrfZv/OxfCAggld4\n"
               "KGOjUWd7ADTBslIO+Fp/tU0=\n"
               "-----END CERTIFICATE-----\n",
};
static const struct join_identity old_follows = {
    .cert = "-----BEGIN CERTIFICATE-----\n"
            "MIIBLjCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
            "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
            "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE9bxSHa8DrKVqIeUK\n"
            "dQcjCLoapNfKzMY6k2yb7vET5cEAln5q6P/nxFANxFAZz3FpJJDRAkxcXG0mJcSy\n"
            "prke+qMTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0kAMEYCIQDV\n"
            "rBpbMAeKHVvFHiTqZyAj/SLWXLm+vY3pBmi0dPn5WgIhAIyaBZJTlVuoHsp2/qqe\n"
            "iYSvnjleyAu3FPl1iGiOLLQr\n"
            "-----END CERTIFICATE-----\n"
            "-----BEGIN CERTIFICATE-----\n"
            "MIIBLjCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
            "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
            "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE9bxSHa8DrKVqIeUK\n"
            "dQcjCLoapNfKzMY6k2yb7vET5cEAln5q6P/nxFANxFAZz3FpJJDRAkxcXG0mJcSy\n"
            "prke+qMTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0kAMEYCIQCw\n"
            "3CVAGOqEkxBuS4tvs9xBz26j4i003a/8hL0sd7u5IwIhANBDV54kKchcAcLzCCVG\n"
            "n52qmqADSZ0N/AD+u5QPgy4t\n"
            "-----END CERTIFICATE-----\n",
    .key = "-----BEGIN EC PRIVATE KEY-----\n"
           "MHcCAQEEIDe2gNYe0aiWIoizPZmBXzHpoMD4N6Yj9a1g4CiOWelloAoGCCqGSM49\n"
           "AwEHoUQDQgAE9bxSHa8DrKVqIeUKdQcjCLoapNfKzMY6k2yb7vET5cEAln5q6P/n\n"
           "xFANxFAZz3FpJJDRAkxcXG0mJcSyprke+g==\n"
           "-----END EC PRIVATE KEY-----\n",
    .trusted = "-----BEGIN CERTIFICATE-----\n"
               "MIIBLjCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
               "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
               "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE9bxSHa8DrKVqIeUK\n"
               "dQcjCLoapNfKzMY6k2yb7vET5cEAln5q6P/nxFANxFAZz3FpJJDRAkxcXG0mJcSy\n"
               "prke+qMTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0kAMEYCIQDV\n"
               "rBpbMAeKHVvFHiTqZyAj/SLWXLm+vY3pBmi0dPn5WgIhAIyaBZJTlVuoHsp2/qqe\n"
               "iYSvnjleyAu3FPl1iGiOLLQr\n"
               "-----END CERTIFICATE-----\n"
               "-----BEGIN CERTIFICATE-----\n"
               "MIIBLTCB0qADAgECAgEBMAwGCCqGSM49BAMCBQAwEzERMA8GA1UEAwwIcm9sbGNh\n"
               "bGwwIBcNNzAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBMxETAPBgNVBAMM\n"
               "CHJvbGxjYWxsMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEjhr/8df1tWI/76zV\n"
               "YbHGmpwkq/angX0l9VF/HgRmkrClCvD8We+TzHIGxJpn/VwRI6B6myG/lJ9fVA90\n"
               "7DsgL6MTMBEwDwYDVR0TAQH/BAUwAwEB/zAMBggqhkjOPQQDAgUAA0gAMEUCIF1n\n"
               "2NcuCWBSdpg4M1XSpolKBd+6CE+MG1O6IqcB4QHfAiEAnyLhBrfZv/OxfCAggld4\n"
               "KGOjUWd7ADTBslIO+Fp/tU0=\n"
               "-----END CERTIFICATE-----\n",
};

static void hosts_of_older_versions_meet_those_of_this_one(void **state)
{
    static const struct {
        const struct join_identity *old;
        const char *token, *past;
        bool meet;
        const char *why;
    } cases[] = {
        { &old_id, TOKEN, NULL, true, "the same token" },
        { &old_id, OTHER, NULL, false, "another one" },
        { &old_id, FOLLOWS, TOKEN, true, "this one's has just replaced it" },
        { &old_follows, FOLLOWS, NULL, true, "the same token, which has replaced another" },
        { &old_follows, TOKEN, NULL, true, "the one that it has replaced" },
        { &old_follows, OTHER, NULL, false, "neither" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (int role = 0; role < 2; role++) {
            struct error err;
            struct tls_side *side = tls_side_new(cases[i].old, role ? TLS_ASKS : TLS_ANSWERS, &err);
            struct tls_link *old = tls_link_new(side), *new = link_make(role ? TLS_ANSWERS : TLS_ASKS, cases[i].token, cases[i].past);
            bool ok = settle(old, new, 1000) && tls_link_is_in(old) && tls_link_is_in(new);
            if (ok != cases[i].meet)
                fail_msg("%s", cases[i].why);
            assert_true(ok || tls_link_is_strange(role ? old : new));    // who has dialed sees why
            tls_link_free(old);
            tls_link_free(new);
            tls_side_free(side);
        }
}

static void messages_arrive_whole_and_in_order_however_their_bytes_come(void **state)
{
    static const size_t sizes[] = { 0, 1, 100, 16384 - 12, 16384, 100000 };
    static const struct {
        size_t piece, n_size;
    } cases[] = { { 1, 3 }, { 7, 4 }, { 100000, ARRAY_SIZE(sizes) } };
    (void)state;
    for (size_t p = 0; p < ARRAY_SIZE(cases); p++) {
        struct error err;
        struct tls_message m;
        bool came;
        struct tls_link *asks = link_make(TLS_ASKS, TOKEN, NULL), *answers = link_make(TLS_ANSWERS, TOKEN, NULL);
        uint8_t *data = malloc(100000);
        for (size_t i = 0; i < 100000; i++)
            data[i] = (uint8_t)(i * 2654435761u >> 13);
        for (size_t i = 0; i < cases[p].n_size; i++) {    // said before they have met
            const struct tls_trace trace = { { 0, 0, 0, 1, 0x80, 0, 0, (uint8_t)i }, 8 };
            assert_true(tls_link_say(asks, &trace, data, sizes[i]));
        }
        assert_true(settle(asks, answers, cases[p].piece));
        for (size_t i = 0; i < cases[p].n_size; i++) {
            assert_true(tls_link_next(answers, &m, &came, &err));
            assert_true(came);
            assert_int_equal(m.len, sizes[i]);
            assert_memory_equal(m.data, data, m.len);
            assert_int_equal(m.trace.len, 8);
            assert_int_equal(m.trace.byte[7], i);
        }
        assert_true(tls_link_next(answers, &m, &came, &err));
        assert_false(came);
        free(data);
        tls_link_free(asks);
        tls_link_free(answers);
    }
}

static void a_request_that_does_not_say_whose_it_is_ends_the_connection(void **state)
{
    static const struct {
        uint8_t trace[40];
        size_t len;
        const char *why;
    } cases[] = {
        { { 0 }, 0, "no number at all" },
        { { 0x80, 0 }, 2, "half of one" },
        { { 0, 0, 0, 1 }, 4, "none is the asker's" },
        { { 0 }, 32, "more hops than there may be" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        struct tls_message m;
        bool came;
        struct tls_trace none = { .len = 0 };
        struct tls_link *asks = link_make(TLS_ASKS, TOKEN, NULL), *answers = link_make(TLS_ANSWERS, TOKEN, NULL);
        assert_true(tls_link_say(asks, &none, cases[i].trace, cases[i].len));
        assert_true(settle(asks, answers, 1000));
        if (tls_link_next(answers, &m, &came, &err))
            fail_msg("%s", cases[i].why);
        tls_link_free(asks);
        tls_link_free(answers);
    }
}

static void two_that_both_ask_part_at_once(void **state)
{
    (void)state;
    struct tls_link *a = link_make(TLS_ASKS, TOKEN, NULL), *b = link_make(TLS_ASKS, TOKEN, NULL);
    assert_false(settle(a, b, 1000));
    tls_link_free(a);
    tls_link_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_meet_when_each_trusts_a_certificate_of_the_other),
        cmocka_unit_test(hosts_of_older_versions_meet_those_of_this_one),
        cmocka_unit_test(messages_arrive_whole_and_in_order_however_their_bytes_come),
        cmocka_unit_test(a_request_that_does_not_say_whose_it_is_ends_the_connection),
        cmocka_unit_test(two_that_both_ask_part_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
