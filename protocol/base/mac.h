/* mac.h - codes and keys from a secret: HMAC (RFC 2104) and HKDF (RFC 5869), with SHA-256. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define MAC_SHA256_BYTES 32
MUST_USE bool mac_sha256(uint8_t out[MAC_SHA256_BYTES], const void *key, size_t key_len, const void *data, size_t len, struct error *err);
/* len bytes, at most 8160, that follow from the key, and nothing else from them; info says what they are for. */
MUST_USE bool key_expand(void *out, size_t len, const void *salt, size_t salt_len, const void *key, size_t key_len, const char *info,
                         struct error *err);
