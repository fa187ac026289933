/* digest.h - SHA-1 (FIPS 180-4, as git names blobs) and SHA-256, for checking downloads
 *
 * Not for secrets. One thread per struct. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
struct digest {
    bool sha256;    // else SHA-1
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64];
};
void digest_init(struct digest *d, bool sha256);
void digest_add(struct digest *d, const void *data, size_t len);
/* Write the digest as lower-case hexadecimal with a NUL (40 or 64 digits); d is used up. */
void digest_hex(struct digest *d, char out[65]);
