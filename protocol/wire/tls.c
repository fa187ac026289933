#include "protocol/wire/tls.h"

nng_tls_config *tls_config_new(const struct join_identity *id, struct error *err)
{
    nng_tls_config *c = NULL;
    int rv = nng_tls_config_alloc(&c, NNG_TLS_MODE_CLIENT);
    if (rv == 0)
        rv = nng_tls_config_server_name(c, JOIN_SERVER_NAME);
    if (rv == 0)
        rv = nng_tls_config_auth_mode(c, NNG_TLS_AUTH_MODE_REQUIRED);
    if (rv == 0)
        rv = nng_tls_config_version(c, NNG_TLS_1_2, NNG_TLS_1_2);    // what this mbedTLS has
    if (rv == 0)
        rv = nng_tls_config_ca_chain(c, id->trusted, NULL);
    if (rv == 0)
        rv = nng_tls_config_own_cert(c, id->cert, id->key, NULL);
    if (rv == 0)
        return c;
    if (c)
        nng_tls_config_free(c);
    error_set(err, ERR_UNSUPPORTED, "nng cannot do TLS here: %s", nng_strerror(rv));
    return NULL;
}

int tls_dial(nng_socket s, const char *url, nng_tls_config *tls)
{
    nng_dialer d;
    int rv = nng_dialer_create(&d, s, url);
    if (rv != 0)
        return rv;
    if (tls)
        rv = nng_dialer_set_ptr(d, NNG_OPT_TLS_CONFIG, tls);
    if (rv == 0)
        rv = nng_dialer_start(d, NNG_FLAG_NONBLOCK);
    if (rv != 0)
        nng_dialer_close(d);
    return rv;
}
