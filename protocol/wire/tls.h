/* tls.h - nng's TLS configuration from a join token's identity; for transport*.c only */
#pragma once
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"
/* The other side must show a certificate that leads to one of those that id trusts. Free with nng_tls_config_free; NULL: see err. */
nng_tls_config *tls_config_new(const struct join_identity *id, nng_tls_mode mode, struct error *err);
/* Like nng_listen and nng_dial; tls is NULL when url does not use TLS. */
int tls_listen(nng_socket s, const char *url, nng_tls_config *tls, nng_listener *listener);
int tls_dial(nng_socket s, const char *url, nng_tls_config *tls);
