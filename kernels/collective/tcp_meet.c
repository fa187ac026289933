#include "kernels/collective/tcp_meet.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/mac.h"
#include "protocol/base/tcp.h"

#define TICK_MS 50          // between looks whether the meeting was called off
#define TELL_MS 100         // a wait this long is reported to the operator
#define STRANGER_MS 2000    // in which a connecting process must prove that it belongs here
#define LOST_MS 30000       // a host that acknowledges nothing for so long has gone; others of its ranks are waited for no longer
#define KEY_BYTES 32
#define MAC_BYTES 32

/* What is sent, in the bytes of this machine: all that we run on are little-endian. */
struct hello {    // from the side that connects
    char magic[8];
    uint8_t nonce[KEY_BYTES];
    uint32_t rank, n_rank, port;
};
struct answer {    // from the side that listens
    uint8_t nonce[KEY_BYTES], mac[MAC_BYTES];
};
struct verdict {
    uint32_t no;    // 0: welcome; else an error code
    uint32_t n_rank;
};
struct place {    // of a rank
    char host[64];
    char port[8];
};
static const char magic[8] = "rcrank1";

struct meet {
    const struct collective *c;
    const struct collective_config *config;
    char path[4200];
    int file, listener;
    int *fd;    // (n_rank)
    int64_t began_ms, end_ms;
    int told;    // the rank that the operator was told of; -1: none
    uint8_t key[KEY_BYTES];
    struct place place[COLLECTIVE_RANK_MAX];
};

bool tcp_meet_called_off(const char *path, int file)
{
    struct stat ours, there;
    return fstat(file, &ours) != 0 || stat(path, &there) != 0 || ours.st_ino != there.st_ino || ours.st_dev != there.st_dev;
}

static bool too_late(struct meet *m, int rank, struct error *err)
{
    char name[64];
    return error_set(err, ERR_TIMEOUT, "%s has not arrived within %" PRId64 " s", collective_name(m->c, rank, name, sizeof name),
                     (m->config->join_ms + 999) / 1000);
}

/* A moment of waiting for rank: until fd (-1: none) can be used or a tick is over. */
static bool moment(struct meet *m, int fd, short events, int rank, struct error *err)
{
    struct pollfd p = { .fd = fd, .events = events };
    int64_t now = clock_ms();
    if (m->file >= 0 && tcp_meet_called_off(m->path, m->file))
        return error_set(err, ERR_CLOSED, "the meeting of the ranks was called off");
    if (now >= m->end_ms)
        return too_late(m, rank, err);
    if (m->config->waits && m->told != rank && now - m->began_ms >= TELL_MS)
        m->config->waits(m->config->ctx, m->told = rank);
    (void)!poll(&p, 1, (int)MIN(m->end_ms - now, (int64_t)TICK_MS));
    return true;
}

/* Send or receive all of it. ERR_CLOSED: the other end has gone. */
static bool all_of(struct meet *m, int fd, void *data, size_t n, bool out, int rank, struct error *err)
{
    char name[64];
    for (size_t at = 0; at < n;) {
        ssize_t k = out ? send(fd, (char *)data + at, n - at, MSG_NOSIGNAL) : recv(fd, (char *)data + at, n - at, 0);
        if (k > 0)
            at += (size_t)k;
        else if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!moment(m, fd, out ? POLLOUT : POLLIN, rank, err))
                return false;
        } else {
            return error_set(err, ERR_CLOSED, "%s has left before the ranks had met", collective_name(m->c, rank, name, sizeof name));
        }
    }
    return true;
}

static bool mac_make(const struct meet *m, const char *role, const struct hello *h, const uint8_t *nonce, uint8_t out[MAC_BYTES],
                     struct error *err)
{
    uint8_t text[8 + sizeof *h + KEY_BYTES] = { 0 };
    memcpy(text, role, strlen(role));
    memcpy(text + 8, h, sizeof *h);
    memcpy(text + 8 + sizeof *h, nonce, KEY_BYTES);
    return mac_sha256(out, m->key, sizeof m->key, text, sizeof text, err) || error_wrap(err, "the ranks' connections");
}

static bool mac_same(const uint8_t *a, const uint8_t *b)
{
    uint8_t other = 0;
    for (int i = 0; i < MAC_BYTES; i++)    // no sooner when the first byte differs
        other |= a[i] ^ b[i];
    return other == 0;
}

static bool random_get(void *out, size_t n, struct error *err)
{
    return getrandom(out, n, 0) == (ssize_t)n || error_errno(err, "the system gives no random numbers");
}

/* What every connection of a rank has. One to another host notices when that has gone without a word: after LOST_MS, also while nothing is
 * sent. On one host the kernel tells. */
static void connection_tune(int fd)
{
    int one = 1, idle_s = LOST_MS / 3000, n = 4, lost_ms = LOST_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){ LOST_MS / 6000 }, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof lost_ms);
}

/* ---- the side that connects */
static int connection_open(struct meet *m, const struct place *at, int rank, struct error *err)
{
    char name[64];
    int fd = -1;
    collective_name(m->c, rank, name, sizeof name);
    struct addrinfo *list = tcp_lookup(at->host, at->port, name, MAX(m->end_ms - clock_ms(), (int64_t)0), err);
    if (!list)
        return -1;
    if ((fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) < 0
        || (connect(fd, list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        error_set(err, ERR_CLOSED, "cannot connect to %s at %.64s:%.8s: %s", name, at->host, at->port, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        connection_tune(fd);
    }
    freeaddrinfo(list);
    return fd;
}

static bool admission_ask(struct meet *m, int fd, int rank, struct error *err)
{
    struct hello h = { .rank = (uint32_t)m->c->rank, .n_rank = (uint32_t)m->c->n_rank, .port = tcp_port(m->listener) };
    struct answer a;
    struct verdict v;
    uint8_t want[MAC_BYTES];
    char name[64];
    memcpy(h.magic, magic, sizeof magic);
    if (!random_get(h.nonce, sizeof h.nonce, err) || !all_of(m, fd, &h, sizeof h, true, rank, err)
        || !all_of(m, fd, &a, sizeof a, false, rank, err) || !mac_make(m, "listens", &h, a.nonce, want, err))
        return false;
    if (!mac_same(want, a.mac))
        return error_set(err, ERR_REFUSED, "who listens in place of %s does not know the meeting's key",
                         collective_name(m->c, rank, name, sizeof name));
    if (!mac_make(m, "joins", &h, a.nonce, want, err) || !all_of(m, fd, want, sizeof want, true, rank, err)
        || !all_of(m, fd, &v, sizeof v, false, rank, err))
        return false;
    if (v.no == ERR_EXISTS)
        return error_set(err, ERR_EXISTS, "rank %d has joined already", m->c->rank);
    if (v.no != 0)
        return error_set(err, ERR_USAGE, "rank %d was told that there are %d ranks, the others %u", m->c->rank, m->c->n_rank, v.n_rank);
    return true;
}

static bool rank_reach(struct meet *m, int rank, struct error *err)
{
    if ((m->fd[rank] = connection_open(m, &m->place[rank], rank, err)) < 0)
        return false;
    return admission_ask(m, m->fd[rank], rank, err);
}

/* ---- the side that listens */
/* What one who has connected says; *rank: whose connection it is now, -1: it was sent away, which is no failure of ours. */
static bool admission_give(struct meet *m, int fd, int *rank, struct error *err)
{
    struct hello h;
    struct answer a;
    struct verdict v = { .n_rank = (uint32_t)m->c->n_rank };
    uint8_t want[MAC_BYTES], got[MAC_BYTES];
    struct error ignored;
    struct meet brief = *m;    // a stranger that says nothing keeps us no longer
    brief.end_ms = MIN(m->end_ms, clock_ms() + STRANGER_MS);
    brief.config = &(struct collective_config){ .join_ms = STRANGER_MS };
    *rank = -1;
    if (!random_get(a.nonce, sizeof a.nonce, err))
        return false;
    if (!all_of(&brief, fd, &h, sizeof h, false, 0, &ignored) || memcmp(h.magic, magic, sizeof magic) != 0)
        return true;
    if (!mac_make(m, "listens", &h, a.nonce, a.mac, err) || !mac_make(m, "joins", &h, a.nonce, want, err))
        return false;
    if (!all_of(&brief, fd, &a, sizeof a, true, 0, &ignored) || !all_of(&brief, fd, got, sizeof got, false, 0, &ignored)
        || !mac_same(want, got))
        return true;
    if (h.n_rank != v.n_rank || h.rank <= (uint32_t)m->c->rank || h.rank >= v.n_rank)
        v.no = ERR_USAGE;
    else if (m->fd[h.rank] >= 0)
        v.no = ERR_EXISTS;
    if (!all_of(&brief, fd, &v, sizeof v, true, 0, &ignored) || v.no != 0)
        return true;
    struct sockaddr_storage from = { 0 };
    socklen_t len = sizeof from;
    *rank = (int)h.rank;
    if (getpeername(fd, (struct sockaddr *)&from, &len) != 0
        || getnameinfo((struct sockaddr *)&from, len, m->place[*rank].host, sizeof m->place[*rank].host, NULL, 0, NI_NUMERICHOST) != 0)
        return error_errno(err, "cannot tell where rank %d is", *rank);
    snprintf(m->place[*rank].port, sizeof m->place[*rank].port, "%u", (unsigned)(uint16_t)h.port);
    return true;
}

/* The next rank above ours that has not come; n_rank: all have. */
static int missing(const struct meet *m)
{
    int q = m->c->rank + 1;
    while (q < m->c->n_rank && m->fd[q] >= 0)
        q++;
    return q;
}

/* Has a rank that came gone again? */
static bool gone_find(struct meet *m, struct error *err)
{
    char byte, name[64];
    for (int q = m->c->rank + 1; q < m->c->n_rank; q++)
        if (m->fd[q] >= 0 && recv(m->fd[q], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            return error_set(err, ERR_CLOSED, "%s has left before the ranks had met", collective_name(m->c, q, name, sizeof name));
    return true;
}

/* Until all ranks above ours have connected. */
static bool others_admit(struct meet *m, struct error *err)
{
    for (int q; (q = missing(m)) < m->c->n_rank;) {
        int rank, fd;
        if (clock_ms() >= m->end_ms)    // also while strangers keep coming
            return too_late(m, q, err);
        fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (!gone_find(m, err) || !moment(m, m->listener, POLLIN, q, err))
                return false;
            continue;
        }
        connection_tune(fd);
        if (!admission_give(m, fd, &rank, err)) {
            close(fd);
            return false;
        }
        if (rank >= 0)
            m->fd[rank] = fd;
        else
            close(fd);
    }
    return true;
}

/* ---- the meeting's file: "HOST PORT KEY [SECRET]\n" */
static int hex_write(char *out, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sprintf(out + 2 * i, "%02x", ((const uint8_t *)bytes)[i]);
    return (int)(2 * n);
}

static bool hex_read(const char *hex, void *out, size_t n)
{
    bool ok = strlen(hex) == 2 * n;
    for (size_t i = 0; i < n && ok; i++) {
        unsigned byte = 0;
        ok = sscanf(hex + 2 * i, "%2x", &byte) == 1;
        ((uint8_t *)out)[i] = (uint8_t)byte;
    }
    return ok;
}

static bool file_write(struct meet *m, struct error *err)
{
    char text[COLLECTIVE_FILE_MAX];
    struct stat st;
    _Static_assert(sizeof m->place[0] + 2 * (KEY_BYTES + COLLECTIVE_SECRET_MAX) + 8 <= sizeof text, "it fits");
    int n = snprintf(text, sizeof text, "%s %s ", m->place[0].host, m->place[0].port);
    n += hex_write(text + n, m->key, KEY_BYTES);
    if (m->config->secret) {
        text[n++] = ' ';
        n += hex_write(text + n, m->config->secret, m->config->secret_bytes);
    }
    text[n++] = '\n';
    if (flock(m->file, LOCK_EX | LOCK_NB) != 0 || fstat(m->file, &st) != 0 || st.st_size > 0)    // locked as long as we meet
        return error_set(err, ERR_EXISTS, "rank 0 has joined already");
    return pwrite(m->file, text, (size_t)n, 0) == n || error_errno(err, "cannot write '%s'", m->path);
}

/* *there: rank 0 has written it. */
static bool file_read(struct meet *m, bool *there, struct error *err)
{
    char text[COLLECTIVE_FILE_MAX] = "", hex[2 * KEY_BYTES + 1] = "", secret[2 * COLLECTIVE_SECRET_MAX + 1] = "";
    ssize_t n = pread(m->file, text, sizeof text - 1, 0);
    _Static_assert(KEY_BYTES == 32 && COLLECTIVE_SECRET_MAX == 256, "as in the format below");
    if (n < 0)
        return error_errno(err, "cannot read '%s'", m->path);
    if (!(*there = memchr(text, '\n', (size_t)n) != NULL))
        return true;
    if (sscanf(text, "%63s %7s %64s %512s", m->place[0].host, m->place[0].port, hex, secret) < 3 || !hex_read(hex, m->key, KEY_BYTES))
        return error_set(err, ERR_DATA, "'%s' does not say where rank 0 is, and the meeting's key", m->path);
    return !m->config->secret || hex_read(secret, m->config->secret, m->config->secret_bytes)
           || error_set(err, ERR_DATA, "'%s' does not hold rank 0's secret of %zu bytes", m->path, m->config->secret_bytes);
}

size_t collective_file_for(const char *text, size_t n, const char *host, char out[COLLECTIVE_FILE_MAX])
{
    char line[COLLECTIVE_FILE_MAX];
    const char *end = memchr(text, '\n', n);
    if (!end || (size_t)(end - text) >= sizeof line || strpbrk(host, " \n"))
        return 0;
    snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
    const char *rest = strchr(line, ' ');
    int m = rest ? snprintf(out, COLLECTIVE_FILE_MAX, "%s%s\n", host, rest) : 0;
    return m > 0 && m < COLLECTIVE_FILE_MAX ? (size_t)m : 0;
}

/* All addresses of this host: then the file's is for ranks here, and what other hosts read has another (collective_file_for). */
static bool address_is_any(const char *host)
{
    return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool listener_open(struct meet *m, struct error *err)
{
    char address[80];
    const char *host = m->config->address ? m->config->address : "127.0.0.1";
    if (strlen(host) >= sizeof m->place[0].host)
        return error_set(err, ERR_USAGE, "'%s' is too long for the address at which a trainer listens", host);
    snprintf(address, sizeof address, strchr(host, ':') ? "[%.64s]:0" : "%.64s:0", host);
    if ((m->listener = tcp_listen(address, err)) < 0)
        return false;
    snprintf(m->place[m->c->rank].host, sizeof m->place[0].host, "%s", address_is_any(host) ? "127.0.0.1" : host);
    snprintf(m->place[m->c->rank].port, sizeof m->place[0].port, "%u", (unsigned)tcp_port(m->listener));
    return true;
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "::ffff:127.", 11) == 0 || strcmp(host, "::1") == 0;
}

/* The places as the rank at the other end of fd reaches them: one that came to us from our own host is there where we are. */
static void places_for(const struct meet *m, int fd, struct place out[COLLECTIVE_RANK_MAX])
{
    struct sockaddr_storage own = { 0 };
    socklen_t len = sizeof own;
    char host[sizeof out->host] = "";
    memcpy(out, m->place, sizeof m->place);
    if (getsockname(fd, (struct sockaddr *)&own, &len) != 0
        || getnameinfo((struct sockaddr *)&own, len, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0 || is_loopback(host))
        return;
    for (int q = 0; q < m->c->n_rank; q++)
        if (is_loopback(out[q].host))
            snprintf(out[q].host, sizeof out[q].host, "%s", host);
}

static bool first_meet(struct meet *m, struct error *err)
{
    if (!random_get(m->key, sizeof m->key, err) || !file_write(m, err) || !others_admit(m, err))
        return false;
    for (int q = 1; q < m->c->n_rank; q++) {
        struct place place[COLLECTIVE_RANK_MAX];
        places_for(m, m->fd[q], place);
        if (!all_of(m, m->fd[q], place, sizeof place[0] * (size_t)m->c->n_rank, true, q, err))
            return false;
    }
    return true;
}

static bool other_meet(struct meet *m, struct error *err)
{
    bool there = false;
    while (!there)
        if (!file_read(m, &there, err) || (!there && !moment(m, -1, 0, 0, err)))
            return false;
    if (!rank_reach(m, 0, err) || !all_of(m, m->fd[0], m->place, sizeof m->place[0] * (size_t)m->c->n_rank, false, 0, err))
        return false;
    for (int q = 0; q < m->c->n_rank; q++)
        m->place[q].host[sizeof m->place[q].host - 1] = m->place[q].port[sizeof m->place[q].port - 1] = 0;
    for (int q = 1; q < m->c->rank; q++)
        if (!rank_reach(m, q, err))
            return false;
    return others_admit(m, err);
}

bool tcp_meet(const struct collective *c, const struct collective_config *config, int *fd, int *file, struct error *err)
{
    struct meet m = { .c = c, .config = config, .file = -1, .listener = -1, .fd = fd, .told = -1, .began_ms = clock_ms() };
    m.end_ms = m.began_ms + config->join_ms;
    for (int q = 0; q < COLLECTIVE_RANK_MAX; q++)
        fd[q] = -1;
    snprintf(m.path, sizeof m.path, "%s/%s", config->dir, config->name);
    bool ok = (m.file = open(m.path, O_RDWR | O_CLOEXEC)) >= 0;
    if (!ok && errno == ENOENT)
        error_set(err, ERR_CLOSED, "the meeting of the ranks was called off");
    else if (!ok)
        error_errno(err, "cannot open '%s'", m.path);
    ok = ok && listener_open(&m, err) && (c->rank == 0 ? first_meet(&m, err) : other_meet(&m, err));
    if (m.told >= 0)
        config->waits(config->ctx, -1);
    if (m.listener >= 0)
        close(m.listener);
    for (int q = 0; q < c->n_rank && !ok; q++)
        if (fd[q] >= 0)
            close(fd[q]);
    if (!ok && m.file >= 0) {
        if (c->rank == 0 && err->code != ERR_EXISTS && !tcp_meet_called_off(m.path, m.file))
            unlink(m.path);    // nobody can meet there any more
        close(m.file);
    }
    *file = ok ? m.file : -1;
    return ok;
}
