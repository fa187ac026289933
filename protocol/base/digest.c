#include "protocol/base/digest.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/macros.h"

static uint32_t rol(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* FIPS 180-4, section 6.1.2. */
static void sha1_block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 80; i++)
        w[i] = i < 16 ? word_at(p + 4 * i) : rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 ? b ^ c ^ d : i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        uint32_t k = i < 20 ? 0x5A827999 : i < 40 ? 0x6ED9EBA1 : i < 60 ? 0x8F1BBCDC : 0xCA62C1D6;
        uint32_t t = rol(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = rol(b, 30);
        b = a;
        a = t;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, section 4.2.2). */
// clang-format off
static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
// clang-format on

/* FIPS 180-4, section 6.2.2. */
static void sha256_block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = word_at(p + 4 * i);
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (rol(w[i - 15], 25) ^ rol(w[i - 15], 14) ^ w[i - 15] >> 3)
               + (rol(w[i - 2], 15) ^ rol(w[i - 2], 13) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = s[7] + (rol(s[4], 26) ^ rol(s[4], 21) ^ rol(s[4], 7)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha256_k[i] + w[i];
        uint32_t t2 = (rol(s[0], 30) ^ rol(s[0], 19) ^ rol(s[0], 10)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void digest_init(struct digest *d, bool sha256)
{
    static const uint32_t start1[8] = { 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0 };
    static const uint32_t start256[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    *d = (struct digest){ .sha256 = sha256 };
    memcpy(d->h, sha256 ? start256 : start1, sizeof d->h);
}

void digest_add(struct digest *d, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len > 0) {
        size_t have = d->n_bytes % 64, n = MIN(len, 64 - have);
        const uint8_t *block = p;
        if (n < 64) {
            memcpy(d->block + have, p, n);
            block = d->block;
        }
        d->n_bytes += n;
        p += n;
        len -= n;
        if (have + n == 64)
            (d->sha256 ? sha256_block : sha1_block)(d->h, block);
    }
}

void digest_hex(struct digest *d, char out[65])
{
    uint64_t bits = d->n_bytes * 8;
    uint8_t pad[72] = { 0x80 }, length[8];
    size_t have = d->n_bytes % 64, n = have < 56 ? 56 - have : 120 - have;
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    digest_add(d, pad, n);
    digest_add(d, length, 8);
    for (int i = 0; i < (d->sha256 ? 8 : 5); i++)
        snprintf(out + 8 * i, 9, "%08x", d->h[i]);
}
