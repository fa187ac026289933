/* tests/bench NAME [options]: measurements that print one JSON line each, as 'rollcall bench' does, of what users do not run */
#include <stdio.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "tests/bench/bench.h"

static const struct {
    const char *name;
    bool (*run)(int argc, char **argv, struct error *err);
    const char *help;
} benches[] = {
    { "learn", bench_learn, "the whole loop in one process, on problems with boxed answers" },
    { "start", bench_start, "seconds from nothing to the first sampled token, part by part" },
    { "delta", bench_delta, "an optimizer step as differences of weights: how small, and how fast" },
    { "bulk", bench_bulk, "large data over an encrypted connection, beside a plain one" },
    { "fetch", bench_fetch, "a new version of the weights to another machine" },
    { "posts", bench_posts, "posted groups on the disk: the server's log beside SQLite, and what a flipped bit costs" },
};

int main(int argc, char **argv)
{
    struct error err = { 0 };
    char text[ERROR_TEXT_BYTES];
    for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(benches); i++)
        if (strcmp(benches[i].name, argv[1]) == 0) {
            if (benches[i].run(argc - 1, argv + 1, &err))
                return 0;
            error_tell(&err, text);
            fprintf(stderr, "bench: %s\n", text);
            return error_exit_status(err.code);
        }
    for (size_t i = 0; i < ARRAY_SIZE(benches); i++)
        printf("  %-6s %s\n", benches[i].name, benches[i].help);
    return argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
}
