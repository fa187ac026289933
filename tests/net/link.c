/* link.c - a link between two network namespaces that a test makes long, lossy, narrow, or cuts; needs root and /dev/net/tun, no module
 *
 *   link SEED
 *
 * Makes two network namespaces that hold nothing but their loopback and one end each, 10.213.7.1 and 10.213.7.2, and carries IP packets
 * between the ends until its input ends. The first line it prints names the namespaces: 'ready FILE FILE', for nsenter --net=FILE; they last
 * as long as this process and those inside. Then it takes a line at a time, and answers each with one:
 *   delay MS [JITTER]   each way, plus up to JITTER; packets stay in order       cut ab | ba | both   what goes there is lost until heal
 *   loss FRACTION       of packets, each way by itself                           heal                 of cuts alone
 *   rate MBIT           each way, 0 is no limit; 50 ms of it, or 32 KiB, wait   count                what was carried and lost, as JSON
 * It exits with 77 where the machine does not permit namespaces or TUN devices.
 * Which packets are lost follows from the seed and their count: the same traffic loses the same ones.
 *
 * One direction is a queue: a packet gets its time when it comes (after those before it have been sent at the rate, plus the delay), and
 * leaves when that has come. One thread does everything. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MTU 1500
#define QUEUE 262144        // packets: 10 Gbit/s for 300 ms; what does not fit is lost
#define WAIT_NS 50000000    // of the rate that waits to be sent, at least
#define WAIT_BYTES 32768
#define ROUNDS 64    // packets of one end before the other has its turn
#define LINE 128
#define NOT_HERE 77    // exit status: the machine does not permit it

struct packet {
    int64_t due_ns;
    int n;
    uint8_t byte[MTU];
};
struct way {                 // from one end to the other
    struct packet *queue;    // (QUEUE), a ring
    uint32_t first, n;
    int64_t free_ns, last_ns;    // when the last packet has been sent at the rate; when it is due
    uint64_t random;
    bool is_cut;
    int64_t n_carried, n_bytes, n_lost, n_cut, n_full;
};
struct link {
    int net[2], tun[2];    // the namespaces and the ends in them
    struct way way[2];     // [0]: a to b
    double delay_ms, jitter_ms, loss, rate_mbit;
    char line[LINE];
    size_t line_len;
};

static void leave(const char *what, int status)
{
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    exit(status);
}

static void fail(const char *what)
{
    leave(what, 2);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* In [0, 1): splitmix64. */
static double random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- the ends */

static void up(int s, const char *name, int mtu, uint32_t address)
{
    struct ifreq r = { 0 };
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    if (address) {
        memcpy(&r.ifr_addr, &a, sizeof a);
        if (ioctl(s, SIOCSIFADDR, &r) != 0)
            fail("cannot give an end its address");
        a.sin_addr.s_addr = htonl(0xffffff00);
        memcpy(&r.ifr_netmask, &a, sizeof a);
        if (ioctl(s, SIOCSIFNETMASK, &r) != 0)
            fail("cannot give an end its mask");
        r.ifr_mtu = mtu;
        if (ioctl(s, SIOCSIFMTU, &r) != 0)
            fail("cannot set an end's packet size");
        r.ifr_qlen = 10000;    // a sender is to be told by the link's queue, not by this one
        if (ioctl(s, SIOCSIFTXQLEN, &r) != 0)
            fail("cannot set an end's queue");
    }
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, &r) != 0)
        fail("cannot bring an end up");
}

/* A namespace of its own for this end. The process is in it afterwards. */
static void end_make(struct link *l, int side)
{
    struct ifreq r = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    if (unshare(CLONE_NEWNET) != 0 || (l->net[side] = open("/proc/self/ns/net", O_RDONLY)) < 0)
        leave("cannot make a network namespace", NOT_HERE);
    if ((l->tun[side] = open("/dev/net/tun", O_RDWR | O_NONBLOCK)) < 0)
        leave("cannot open /dev/net/tun", NOT_HERE);
    snprintf(r.ifr_name, sizeof r.ifr_name, "link0");
    if (ioctl(l->tun[side], TUNSETIFF, &r) != 0)
        leave("cannot make an end", NOT_HERE);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    up(s, "lo", 0, 0);
    up(s, "link0", MTU, 0x0ad50701u + (uint32_t)side);    // 10.213.7.1 and .2
    close(s);
}

/* ---- a packet */

static void packet_take(struct link *l, struct way *w, struct packet *p, int64_t now)
{
    double jitter = l->jitter_ms * random_next(&w->random);
    bool lost = random_next(&w->random) < l->loss;    // drawn for each packet, so that a packet's fate is its number's
    int64_t wait = w->free_ns > now ? w->free_ns - now : 0;
    int64_t room = l->rate_mbit > 0 ? (int64_t)(WAIT_BYTES * 8e3 / l->rate_mbit) : 0;
    if (w->is_cut) {
        w->n_cut++;
    } else if (lost) {
        w->n_lost++;
    } else if (w->n == QUEUE - 1 || wait > (room > WAIT_NS ? room : WAIT_NS)) {
        w->n_full++;
    } else {
        w->free_ns = now + wait + (l->rate_mbit > 0 ? (int64_t)(p->n * 8e3 / l->rate_mbit) : 0);
        int64_t due = w->free_ns + (int64_t)(1e6 * (l->delay_ms + jitter));
        w->last_ns = p->due_ns = due > w->last_ns ? due : w->last_ns;
        w->n++;
    }
}

/* Take what one end sends. */
static void end_read(struct link *l, int side, int64_t now)
{
    struct way *w = &l->way[side];
    for (int i = 0; i < ROUNDS; i++) {
        struct packet *p = &w->queue[(w->first + w->n) % QUEUE];    // one is always free
        ssize_t n = read(l->tun[side], p->byte, MTU);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            fail("cannot read from an end");
        if (n <= 0)
            return;
        p->n = (int)n;
        packet_take(l, w, p, now);
    }
}

static void way_send(struct link *l, int side, int64_t now)
{
    struct way *w = &l->way[side];
    for (; w->n > 0 && w->queue[w->first].due_ns <= now; w->first = (w->first + 1) % QUEUE, w->n--) {
        const struct packet *p = &w->queue[w->first];
        if (w->is_cut) {    // it was on its way
            w->n_cut++;
        } else if (write(l->tun[!side], p->byte, (size_t)p->n) == p->n) {
            w->n_carried++;
            w->n_bytes += p->n;
        } else {
            w->n_full++;
        }
    }
    if (w->n == 0)
        w->first = 0;    // memory that was touched already
}

/* ---- orders */

static bool order_take(struct link *l, const char *line)
{
    double a = 0, b = 0;
    char word[16] = "", more;
    if (sscanf(line, "delay %lf %lf %c", &a, &b, &more) >= 1 && a >= 0 && b >= 0) {
        l->delay_ms = a;
        l->jitter_ms = b;
    } else if (sscanf(line, "loss %lf %c", &a, &more) == 1 && a >= 0 && a <= 1) {
        l->loss = a;
    } else if (sscanf(line, "rate %lf %c", &a, &more) == 1 && a >= 0) {
        l->rate_mbit = a;
    } else if (sscanf(line, "cut %15s %c", word, &more) == 1
               && (strcmp(word, "ab") == 0 || strcmp(word, "ba") == 0 || strcmp(word, "both") == 0)) {
        l->way[0].is_cut = strcmp(word, "ba") != 0;
        l->way[1].is_cut = strcmp(word, "ab") != 0;
    } else if (strcmp(line, "heal") == 0) {
        l->way[0].is_cut = l->way[1].is_cut = false;
    } else if (strcmp(line, "count") == 0) {
        for (int i = 0; i < 2; i++)
            printf("%s\"%s\": {\"carried\": %" PRId64 ", \"bytes\": %" PRId64 ", \"lost\": %" PRId64 ", \"cut\": %" PRId64
                   ", \"full\": %" PRId64 "}%s",
                   i == 0 ? "{" : ", ", i == 0 ? "ab" : "ba", l->way[i].n_carried, l->way[i].n_bytes, l->way[i].n_lost, l->way[i].n_cut,
                   l->way[i].n_full, i == 0 ? "" : "}\n");
        return true;
    } else {
        return false;
    }
    printf("ok\n");
    return true;
}

/* False: the input has ended. */
static bool orders_read(struct link *l)
{
    ssize_t n = read(0, l->line + l->line_len, LINE - 1 - l->line_len);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    l->line_len += (size_t)n;
    l->line[l->line_len] = 0;
    for (char *end; (end = strchr(l->line, '\n'));) {
        *end = 0;
        if (!order_take(l, l->line))
            printf("no order: '%s'\n", l->line);
        l->line_len -= (size_t)(end + 1 - l->line);
        memmove(l->line, end + 1, l->line_len + 1);
    }
    fflush(stdout);
    return l->line_len < LINE - 1;
}

static void link_turn(struct link *l, bool *over)
{
    struct pollfd p[] = { { .fd = l->tun[0], .events = POLLIN }, { .fd = l->tun[1], .events = POLLIN }, { .fd = 0, .events = POLLIN } };
    int64_t now = now_ns(), due = INT64_MAX;
    for (int i = 0; i < 2; i++)
        if (l->way[i].n > 0 && l->way[i].queue[l->way[i].first].due_ns < due)
            due = l->way[i].queue[l->way[i].first].due_ns;
    int64_t wait = due == INT64_MAX ? 1000000000 : due > now ? due - now : 0;
    struct timespec t = { .tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000 };
    if (ppoll(p, 3, &t, NULL) < 0 && errno != EINTR)
        fail("cannot wait");
    now = now_ns();
    for (int i = 0; i < 2; i++) {
        if (p[i].revents)
            end_read(l, i, now);
        way_send(l, i, now);
    }
    if (p[2].revents)
        *over = !orders_read(l);
}

int main(int argc, char **argv)
{
    struct link *l = calloc(1, sizeof *l);
    char *end = NULL;
    uint64_t seed = argc == 2 ? strtoull(argv[1], &end, 10) : 0;
    bool over = false;
    if (!end || *end) {
        fprintf(stderr, "usage: link SEED\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        if (!l || !(l->way[i].queue = calloc(QUEUE, sizeof *l->way[i].queue)))
            fail("no memory");
        l->way[i].random = seed + (uint64_t)i;
        end_make(l, i);
    }
    prctl(PR_SET_TIMERSLACK, 1000L);      // ns: delays are to be what they were asked for,
    setpriority(PRIO_PROCESS, 0, -20);    // on a busy machine, too
    printf("ready /proc/%d/fd/%d /proc/%d/fd/%d\n", (int)getpid(), l->net[0], (int)getpid(), l->net[1]);
    fflush(stdout);
    while (!over)
        link_turn(l, &over);
    for (int i = 0; i < 2; i++)
        free(l->way[i].queue);
    free(l);
    return 0;
}
