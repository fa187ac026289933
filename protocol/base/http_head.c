#include "protocol/base/http_head.h"
#include <string.h>
#include <strings.h>
#include "protocol/base/macros.h"

#define CHUNK_LINES_MAX 8192    // bytes of sizes, extensions and trailers between two pieces of data
#define LENGTH_DIGITS_MAX 18

static const char token_chars[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
static const char framing_why[] = "the request's length or host is ambiguous";
static const char malformed_why[] = "the request's head is not HTTP/1.1";

/* ---- where a head ends */
enum http_found http_head_find(const char *data, size_t len, size_t *seen, size_t *head_len)
{
    for (size_t i = *seen; i < len; i++) {
        bool after_cr = i > 0 && data[i - 1] == '\r';
        if (data[i] == 0 || (data[i] == '\n') != after_cr)
            return HTTP_BAD;
        if (i >= 3 && data[i] == '\n' && data[i - 2] == '\n') {
            *head_len = i + 1;
            return HTTP_WHOLE;
        }
    }
    *seen = len;
    return HTTP_MORE;
}

/* ---- a head's lines */
/* The line at *at without its end, which becomes a NUL; *at is the next one. */
static char *line_next(char **at)
{
    char *line = *at, *end = strstr(line, "\r\n");    // each line of a whole head has one
    *end = 0;
    *at = end + 2;
    return line;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decode %XX in place (RFC 3986, 2.1), and '+' for a blank where it is one. False: it is wrong, or a byte of 0. */
static bool decode(char *text, bool plus)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        char c = *at;
        if (c == '%') {
            int high = hex(at[1]), low = high < 0 ? -1 : hex(at[2]);
            if (low < 0 || (high | low) == 0)
                return false;
            c = (char)(16 * high + low);
            at += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        *to++ = c;
    }
    *to = 0;
    return true;
}

static int query_read(struct http_head *h, char *query, const char **why)
{
    for (char *next; query && *query; query = next) {
        next = strchr(query, '&');
        if (next)
            *next++ = 0;
        if (h->n_query == HTTP_QUERY_MAX) {
            *why = "the request has more than 64 arguments after '?'";
            return 400;
        }
        char *value = strchr(query, '=');
        if (value)
            *value++ = 0;
        if (!decode(query, true) || (value && !decode(value, true))) {
            *why = "an argument after '?' is not percent-encoded";
            return 400;
        }
        h->query[h->n_query++] = (struct http_pair){ query, value ? value : query + strlen(query) };
    }
    return 0;
}

/* '/path?query' or 'http://host/path?query', whose host stands for the header's (RFC 9112, 3.2). */
static int target_read(struct http_head *h, char *target, const char **why)
{
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *host = strchr(target, ':') + 3;
        size_t n = strcspn(host, "/?");
        h->host = memmove(host - 2, host, n);    // over '//': then there is room for a NUL, and for a path that is not there
        h->host[n] = 0;
        target = host + n;
        if (*target != '/')
            *--target = '/';
    }
    char *query = strchr(target, '?');
    if (query)
        *query++ = 0;
    h->path = target;
    if (!decode(h->path, false)) {
        *why = "the path is not percent-encoded";
        return 400;
    }
    return query_read(h, query, why);
}

static int request_line_read(struct http_head *h, char *line, const char **why)
{
    size_t n = strspn(line, token_chars);
    char *target = line + n + 1, *version;
    *why = malformed_why;
    if (n == 0 || line[n] != ' ' || !(version = strchr(target, ' ')) || version == target)
        return 400;
    for (const char *at = target; at < version; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            return 400;
    line[n] = 0;
    *version++ = 0;
    if (strncmp(version, "HTTP/", 5) != 0)
        return 400;
    if (strcmp(version, "HTTP/1.0") != 0 && strcmp(version, "HTTP/1.1") != 0) {
        *why = "this server speaks HTTP/1.1";
        return 505;
    }
    h->minor = version[7] - '0';
    h->method = line;
    return target_read(h, target, why);
}

static int header_read(struct http_head *h, char *line, const char **why)
{
    size_t n = strspn(line, token_chars);
    *why = framing_why;
    if (n == 0 || line[n] != ':')    // a folded line begins with a blank
        return 400;
    char *value = line + n + 1;
    value += strspn(value, " \t");
    size_t len = strlen(value);
    while (len > 0 && strchr(" \t", value[len - 1]))
        len--;
    value[len] = 0;
    for (const char *at = value; *at; at++)
        if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7f)
            return 400;
    if (h->n_header == HTTP_HEADERS_MAX) {
        *why = "the request has more than 128 headers";
        return 431;
    }
    line[n] = 0;
    h->header[h->n_header++] = (struct http_pair){ line, value };
    return 0;
}

/* ---- what they say together */
static bool length_read(const char *text, int64_t *length)
{
    size_t n = strlen(text);
    if (*length >= 0 || n == 0 || strspn(text, "0123456789") != n)    // two of them are refused, even alike
        return false;
    text += MIN(strspn(text, "0"), n - 1);
    *length = strlen(text) > LENGTH_DIGITS_MAX ? INT64_MAX : 0;
    for (; *length < INT64_MAX && *text; text++)
        *length = 10 * *length + (*text - '0');
    return true;
}

/* Is name one of the words of a list between commas? */
static bool list_has(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = list; *at;) {
        at += strspn(at, ", \t");
        size_t n = strcspn(at, ", \t");
        if (n == len && strncasecmp(at, name, n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* Length, coding and host (RFC 9112, 6 and 3.2): each at most once, and so that there is one way to read it. */
static int framing_read(struct http_head *h, const char **why)
{
    int n_host = 0, n_coding = 0;
    for (int i = 0; i < h->n_header; i++) {
        const char *name = h->header[i].name;
        char *value = h->header[i].value;
        *why = framing_why;
        if (strcasecmp(name, "Content-Length") == 0 && !length_read(value, &h->length))
            return 400;
        if (strcasecmp(name, "Transfer-Encoding") == 0 && (n_coding++ > 0 || strcasecmp(value, "chunked") != 0 || h->minor == 0))
            return 400;
        if (strcasecmp(name, "Host") == 0 && (n_host++ > 0 || strpbrk(value, " \t,/@\\?#\"<>")))
            return 400;
        if (strcasecmp(name, "Host") == 0 && !h->host)
            h->host = value;
        if (strcasecmp(name, "Connection") == 0)
            h->close |= list_has(value, "close");
        if (strcasecmp(name, "Expect") == 0) {
            *why = "Expect has something other than 100-continue";
            if (strcasecmp(value, "100-continue") != 0)
                return 417;
            h->expects = h->minor > 0;
        }
    }
    *why = framing_why;
    h->chunked = n_coding > 0;
    h->close |= h->minor == 0;
    return (h->chunked && h->length >= 0) || (h->minor > 0 && n_host == 0) ? 400 : 0;
}

int http_head_read(struct http_head *h, char *text, const char **why)
{
    *h = (struct http_head){ .length = -1, .close = true };
    int status = request_line_read(h, line_next(&text), why);
    while (status == 0 && strncmp(text, "\r\n", 2) != 0)
        status = header_read(h, line_next(&text), why);
    if (status != 0)
        return status;
    h->close = false;
    return framing_read(h, why);
}

static const char *pair_find(const struct http_pair *p, int n, const char *name, int (*compare)(const char *, const char *))
{
    for (int i = 0; i < n; i++)
        if (compare(p[i].name, name) == 0)
            return p[i].value;
    return NULL;
}

const char *http_header(const struct http_head *h, const char *name)
{
    return pair_find(h->header, h->n_header, name, strcasecmp);
}

const char *http_query(const struct http_head *h, const char *name)
{
    return pair_find(h->query, h->n_query, name, strcmp);
}

/* Does a URL, if there is one, lead to host? */
static bool leads_to(const char *url, const char *host)
{
    const char *at = url ? strstr(url, "://") : NULL;
    return !url || (at && host && strcspn(at + 3, "/?#") == strlen(host) && strncmp(at + 3, host, strlen(host)) == 0);
}

bool http_is_foreign(const struct http_head *h)
{
    const char *site = http_header(h, "Sec-Fetch-Site");
    bool own = !site || strcasecmp(site, "same-origin") == 0 || strcasecmp(site, "none") == 0;
    return !own || !leads_to(http_header(h, "Origin"), h->host) || !leads_to(http_header(h, "Referer"), h->host);
}

/* ---- chunks (RFC 9112, 7.1): SIZE [;extension] CRLF data CRLF … 0 CRLF trailers CRLF */
enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXTENSION,    // to the end of the line
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER,         // at the start of a line
    CHUNK_TRAILER_LINE,    // within one
    CHUNK_TRAILER_LF,
    CHUNK_LAST_LF,
};

static bool is_text(char c)
{
    return (unsigned char)c >= ' ' ? c != 0x7f : c == '\t';
}

/* One byte that is no data. */
static enum http_found chunk_step(struct http_chunks *c, char byte)
{
    int digit;
    switch ((enum chunk_state)c->state) {
    case CHUNK_SIZE:
        if ((digit = hex(byte)) >= 0 && c->n_digit < 15) {
            c->left = 16 * c->left + (uint64_t)digit;
            c->n_digit++;
            return HTTP_MORE;
        }
        if (c->n_digit == 0 || (byte != ';' && byte != '\r'))
            return HTTP_BAD;
        c->state = byte == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
        return HTTP_MORE;
    case CHUNK_EXTENSION:
        if (byte == '\r')
            c->state = CHUNK_SIZE_LF;
        return byte == '\r' || is_text(byte) ? HTTP_MORE : HTTP_BAD;
    case CHUNK_SIZE_LF: c->state = c->left > 0 ? CHUNK_DATA : CHUNK_TRAILER; break;
    case CHUNK_DATA_CR: c->state = CHUNK_DATA_LF; return byte == '\r' ? HTTP_MORE : HTTP_BAD;
    case CHUNK_DATA_LF:
        c->state = CHUNK_SIZE;
        c->n_digit = 0;
        c->n_line = 0;
        break;
    case CHUNK_TRAILER:
        c->state = byte == '\r' ? CHUNK_LAST_LF : CHUNK_TRAILER_LINE;
        return byte == '\r' || (byte > ' ' && is_text(byte)) ? HTTP_MORE : HTTP_BAD;
    case CHUNK_TRAILER_LINE:
        if (byte == '\r')
            c->state = CHUNK_TRAILER_LF;
        return byte == '\r' || is_text(byte) ? HTTP_MORE : HTTP_BAD;
    case CHUNK_TRAILER_LF: c->state = CHUNK_TRAILER; break;
    case CHUNK_LAST_LF: return byte == '\n' ? HTTP_WHOLE : HTTP_BAD;
    case CHUNK_DATA: break;    // not here
    }
    return byte == '\n' ? HTTP_MORE : HTTP_BAD;
}

enum http_found http_chunks_take(struct http_chunks *c, const char *data, size_t len, size_t *used, const char **piece, size_t *n_piece)
{
    enum http_found found = HTTP_MORE;
    *used = *n_piece = 0;
    *piece = data;
    while (*used < len && found == HTTP_MORE) {
        if (c->state == CHUNK_DATA) {
            *piece = data + *used;
            *n_piece = (size_t)MIN(c->left, (uint64_t)(len - *used));
            *used += *n_piece;
            c->left -= *n_piece;
            if (c->left == 0)
                c->state = CHUNK_DATA_CR;
            return HTTP_MORE;
        }
        found = c->n_line++ < CHUNK_LINES_MAX ? chunk_step(c, data[*used]) : HTTP_BAD;
        ++*used;
    }
    return found;
}

/* ---- answers */
const char *http_status_words(int status)
{
    static const struct {
        int status;
        const char *words;
    } table[] = {
        { 200, "OK" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 409, "Conflict" },
        { 413, "Content Too Large" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (table[i].status == status)
            return table[i].words;
    return status < 300 ? "OK" : status < 500 ? "Client Error" : "Server Error";
}
