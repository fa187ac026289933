/* tls.h - nng's TLS for dialing other hosts, from a join token's identity; for transport_peer.c only. The side that is dialed has tls_link.h. */
#pragma once
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"
/* The other side must show a certificate that leads to one of those that id trusts. Free with nng_tls_config_free; NULL: see err. */
nng_tls_config *tls_config_new(const struct join_identity *id, struct error *err);
/* Like nng_dial; tls is NULL when url does not use TLS. */
int tls_dial(nng_socket s, const char *url, nng_tls_config *tls);
