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
#define JOIN_TOKEN_ID_LEN 16           // digits
#define JOIN_SERVER_NAME "rollcall"    // in the certificates, whatever the host's name is
struct join_identity {
    char cert[2048], key[1024];    // PEM: shown to the other side, and its key
    char trusted[4096];            // PEM: of which the other side must show one, or one that leads to one
};
/* Make a token in the file path (mode 0600) unless the file already has one. */
MUST_USE bool join_token_make(const char *path, struct error *err);
/* Read a token; a file that others can read is refused. */
MUST_USE bool join_token_read(char token[JOIN_TOKEN_LEN + 1], const char *path, struct error *err);
/* Write a token into a file of mode 0600: after a crash the old one is there, or the new one. */
MUST_USE bool join_token_write(const char *path, const char *token, struct error *err);
/* Is this text a token? Blanks and newlines around it are cut off in place. */
MUST_USE bool join_token_check(char *text, struct error *err);
/* The identity of a holder of the token. With past, the token that it has replaced (else NULL), both sides are content with either token: the
 * other side's may be one or the other, and it accepts this identity whichever it is. */
MUST_USE bool join_identity_make(struct join_identity *out, const char *token, const char *past, struct error *err);
/* Make a token; for join_token_write. */
MUST_USE bool join_token_new(char token[JOIN_TOKEN_LEN + 1], struct error *err);
/* A name for a token, from which it cannot be found. */
MUST_USE bool join_token_id(char id[JOIN_TOKEN_ID_LEN + 1], const char *token, struct error *err);
