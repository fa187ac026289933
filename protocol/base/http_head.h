/* http_head.h - the head of a request and the chunks of its body, as HTTP/1.1 has them (RFC 9112), read strictly
 *
 * What two programs may read in two ways is refused: lines that do not end in CRLF, bytes of 0 and other control characters, folded
 * lines, blanks before a colon, two lengths, a length beside chunks, codings other than chunked. A server behind a proxy then sees
 * the requests that the proxy saw. Nothing here reads or allocates; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_HEAD_MAX (32 * 1024)    // bytes of request line and headers
#define HTTP_HEADERS_MAX 128
#define HTTP_QUERY_MAX 64    // arguments

enum http_found {
    HTTP_MORE,    // it has not come whole
    HTTP_WHOLE,
    HTTP_BAD,    // it is none, whatever comes
};
struct http_pair {
    char *name, *value;
};
struct http_head {
    char *method, *path;                                                 // path: decoded, without its query
    char *host;                                                          // NULL: not given (HTTP/1.0)
    int minor;                                                           // of HTTP/1.
    struct http_pair header[HTTP_HEADERS_MAX], query[HTTP_QUERY_MAX];    // query: decoded
    int n_header, n_query;
    int64_t length;    // of the body; -1: not given
    bool chunked;
    bool close;      // the client wants no other answer on this connection
    bool expects;    // it waits for '100 Continue' before it sends the body
};
/* Is there a whole head at the start of data? *seen: bytes that earlier calls have looked at; 0 at first. *head_len: with its last line. */
enum http_found http_head_find(const char *data, size_t len, size_t *seen, size_t *head_len);
/* Read a head that is whole, and ends in a NUL, in place: h points into it. 0, or the status of the refusal, and *why says what is wrong
 * in one sentence of static storage. */
int http_head_read(struct http_head *h, char *text, const char **why);
/* The value of a header, its name in any case; NULL: it is not there. */
const char *http_header(const struct http_head *h, const char *name);
/* The value of the first argument NAME=; NULL: there is none. */
const char *http_query(const struct http_head *h, const char *name);

/* Did a browser send it for a page of another site than the host that is asked? An image or a link comes without Origin, but with
 * Sec-Fetch-Site (Fetch Metadata Request Headers, section 2.3) or Referer. */
bool http_is_foreign(const struct http_head *h);
#define HTTP_FOREIGN_WHY "requests from other sites' pages are not answered"

/* The chunks of one body. {0} at first. */
struct http_chunks {
    int state;
    uint64_t left;    // bytes of this chunk
    int n_digit;
    size_t n_line;    // bytes of lines that are no data
};
/* Take bytes of the body: *used of them, of which (*n_piece) at *piece are data. HTTP_MORE: call again with the rest, or when more has
 * come. HTTP_WHOLE: that was the body's end. */
enum http_found http_chunks_take(struct http_chunks *c, const char *data, size_t len, size_t *used, const char **piece, size_t *n_piece);

/* The words for an answer's status (RFC 9110, section 15). */
const char *http_status_words(int status);
