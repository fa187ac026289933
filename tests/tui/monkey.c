/* monkey.c - random keys, clicks and pastes into a console of a live run, whose state must not change
 *
 *   tui_monkey RUN_DIR KEYS SEED ROLLCALL
 * The run is a simulated one (rollcall simulate --agents 2 --run RUN_DIR), or one that trains. No question is ever answered with yes, so no command that
 * asks may reach the run: afterwards its state, its settings and its trail of commands are compared with those before. Exit 1 and a
 * sentence when something has changed, or when the console has ended. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/link.h"
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"
#include "protocol/wire/message.h"
#include "tests/tui/pty.h"

#define COLS 110
#define ROWS 34
#define LIMIT_NS ((int64_t)60 * 1000000000)

static uint64_t rng;

static unsigned below(unsigned n)
{
    return (unsigned)(mix64_next(&rng) >> 33) % n;
}

/* One key or a few that belong together; never 'y', and never an answer to the question for a pause: that is cancelled by two escapes,
 * since what comes next may make one key of the last. */
static void keys_make(char *out, size_t size)
{
    static const char *const whole[] = {
        "\x1b[A",
        "\x1b[B",
        "\x1b[C",
        "\x1b[D",
        "\x1b[5~",
        "\x1b[6~",
        "\x1b[H",
        "\x1b[F",
        "\x1b[Z",
        "\t",
        "\r",
        "\r",
        "\x1b",
        "\x0c",
        "\x7f",
        "p\x1b\x1b",
        "S",
        "K",
        "U",
        "u",
        "b",
        "x",
        ":stop\r\x1b",
        ":rollback 20\r\x1b",
        ":restart agent\r\x1b",
        ":quarantine 3\r\x1b",
        ":set learning_rate=0.5\r\x1b",
        ":foo\r",
        ":pane log\r",
        "/err\r",
        "/\x1b",
        "4\r9\r\x1b\x1b",
        "7b\x1b",
        "2K\x1b",
        "3x\x1b",
        "?",
        " ",
        "m",
        "T",
        "\x1b[<0;12;2M",
        "\x1b[<64;10;9M",
        "\x1b[<65;10;9M",
        "\xc3\xa9",
        "\xf0\x9f\x98\x80",
        "\xff\xfe",
        "\x1b[999;999R",
    };
    static const char *const pasted[] = {
        "y",  "y\ry\ry\r", ":stop\ry", "stop it, please: y\r:stop\ryq", "S\ry\r", "p\rs\r", "line one\nline two\n", "\x1b\x1b:stop\ry",
        "Ky", "by",
    };
    unsigned kind = below(10);
    if (kind == 0) {
        snprintf(out, size, "\x1b[200~%s\x1b[201~", pasted[below(sizeof(pasted) / sizeof(pasted[0]))]);
    } else if (kind < 6) {
        snprintf(out, size, "%s", whole[below(sizeof(whole) / sizeof(whole[0]))]);
    } else {
        char c;
        do
            c = (char)(0x21 + below(0x7e - 0x21));
        while (c == 'y' || c == 'p' || c == 'q' || c == ':');
        out[0] = c;
        out[1] = 0;
    }
}

static bool known(struct feed *feed, struct run_view *m)
{
    int64_t begin = clock_ns();
    while (clock_ns() - begin < LIMIT_NS) {
        struct pollfd fd = { .fd = feed->fd, .events = POLLIN };
        poll(&fd, 1, 50);
        feed->pump(feed, m, clock_ns());
        if (m->told_ns && m->n_event > 0 && clock_ns() - begin > (int64_t)2500000000)    // an event comes with the next status
            return true;
    }
    return false;
}

/* May this command come from a key that asks nothing? text: the command (a simulated run), or what it has done. */
static bool harmless(const char *text)
{
    static const char *const free_of_cost[] = { "resume", "checkpoint", "eval", "ack", "mute", "unmute", "pin", "unpin" };
    static const char *const outcomes[] = { "step ", "evaluated at step ", "the run has no evaluation set", "running from step ",
                                            "no alarm can be " };
    static const char *const words[] = {
        " acknowledged", " muted", " heard again", " is pinned", " pinned", " stays until it is unpinned"
    };
    size_t n = strcspn(text, " ");
    for (size_t i = 0; i < sizeof(free_of_cost) / sizeof(free_of_cost[0]); i++)
        if (strlen(free_of_cost[i]) == n && strncmp(text, free_of_cost[i], n) == 0)
            return true;
    for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++)
        if (strncmp(text, outcomes[i], strlen(outcomes[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

static int compare(const struct run_view *before, const struct run_view *after)
{
    int wrong = 0;
    const struct event_view *e;
    if (after->state != before->state || after->incarnation != before->incarnation || after->lock.holder[0]) {
        fprintf(stderr, "monkey: the run is %s, incarnation %" PRId64 "\n", run_state_name(after->state), after->incarnation);
        wrong++;
    }
    for (int i = 0; i < n_knobs; i++)
        if (strcmp(before->knob[i].text, after->knob[i].text) != 0) {
            fprintf(stderr, "monkey: '%s' is %s and was %s\n", knobs[i].name, after->knob[i].text, before->knob[i].text);
            wrong++;
        }
    const struct event_view *last = view_event_at(before, 0);
    for (int64_t i = 0; (e = view_event_at(after, i)) != NULL && (!last || e->id > last->id); i++)
        if (strcmp(e->kind, "command") == 0 && !harmless(e->text)) {
            fprintf(stderr, "monkey: a command came without an answer to a question: %s\n", e->text);
            wrong++;
        }
    return wrong;
}

int main(int argc, char **argv)
{
    struct error err = { 0 };
    if (argc != 5) {
        fprintf(stderr, "usage: tui_monkey RUN_DIR KEYS SEED ROLLCALL\n");
        return 2;
    }
    long keys = strtol(argv[2], NULL, 10), pressed = 0;
    rng = strtoull(argv[3], NULL, 10);
    struct run_view *before = view_new(&err), *after = view_new(&err);
    struct feed *feed = before && after ? link_new(argv[1], false, before, clock_ns(), &err) : NULL;
    if (!feed || !known(feed, before)) {
        fprintf(stderr, "monkey: %s\n", err.text[0] ? err.text : "the run does not answer");
        return 1;
    }
    feed->free(feed);
    struct pty p;
    char *command[] = { argv[4], "console", argv[1], NULL };
    if (!pty_start(&p, COLS, ROWS, NULL, command) || !pty_wait(&p, "RUNNING", 60)) {
        fprintf(stderr, "monkey: no console came up\n");
        return 1;
    }
    while (pressed < keys && !p.ended) {
        char burst[4096];
        size_t n = 0;
        for (int i = 0; i < 6 && n + 128 < sizeof(burst); i++, pressed++) {
            keys_make(burst + n, sizeof(burst) - n);
            n += strlen(burst + n);
        }
        pty_type(&p, burst);
        pty_read(&p, 60, 6);
    }
    bool ended = p.ended;
    pty_type(&p, "\x1b[201~\x1b\x1b\x1b\x1b\x1b");
    pty_read(&p, 2500, 500);
    ended |= p.ended;
    pty_finish(&p, 20, true);
    feed = link_new(argv[1], false, after, clock_ns(), &err);
    int wrong = !feed || !known(feed, after);
    wrong += wrong ? 0 : compare(before, after);
    if (feed)
        feed->free(feed);
    if (ended)
        fprintf(stderr, "monkey: the console has ended\n");
    printf("%ld random keys and pastes with seed %s: %s%s\n", pressed, argv[3], wrong ? "the run has changed" : "the run is as it was",
           ended ? ", the console has ended" : "");
    fleet_model_free(before);
    fleet_model_free(after);
    return wrong || ended;
}
