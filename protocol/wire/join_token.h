/* join_token.h - the secret that the nodes of a run share, and the TLS identity derived from it
 *
 * The token is 64 hexadecimal digits (32 random bytes) in a file that only its owner can read, RUN/sock/join. Head and node
 * each derive the same P-256 key from it (HKDF-SHA256, RFC 5869) and sign themselves a certificate with it; in the TLS
 * handshake each proves to the other that it holds the key, so both know that the other has the token, and nobody else can
 * listen in. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
#define JOIN_TOKEN_LEN 64              // digits
#define JOIN_SERVER_NAME "rollcall"    // in the certificates, whatever the host's name is
struct join_identity {
    char cert[2048], key[1024];    // PEM
};
/* Make a token in the file path (mode 0600) unless the file already has one. */
MUST_USE bool join_token_make(const char *path, struct error *err);
/* Read a token; a file that others can read is refused. */
MUST_USE bool join_token_read(char token[JOIN_TOKEN_LEN + 1], const char *path, struct error *err);
/* Write a token into a file of mode 0600, for the processes of a node. */
MUST_USE bool join_token_write(const char *path, const char *token, struct error *err);
/* Is this text a token? Blanks and newlines around it are cut off in place. */
MUST_USE bool join_token_check(char *text, struct error *err);
MUST_USE bool join_identity_make(struct join_identity *out, const char *token, struct error *err);
