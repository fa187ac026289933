/* http.h - keep libcurl to HTTP
 *
 * Addresses come from settings and from servers' redirects; libcurl alone would also read file: and ftp: addresses. */
#pragma once
#include <curl/curl.h>
#include <stdbool.h>

/* Let c use only HTTPS (and HTTP if plain) for its address and redirects. libcurl refuses this only when it was built without
 * HTTPS, and then it refuses the transfer as well. */
static inline void http_only(CURL *c, bool plain)
{
#if LIBCURL_VERSION_NUM >= 0x075500    // before 7.85 there are only bit masks, deprecated since
    const char *allowed = plain ? "http,https" : "https";
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, allowed);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, allowed);
#else
    long allowed = CURLPROTO_HTTPS | (plain ? CURLPROTO_HTTP : 0);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, allowed);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS, allowed);
#endif
}
