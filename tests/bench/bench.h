/* bench.h - measurements of parts, for whoever works on them: argv[0] is each one's name; one file NAME.c each */
#pragma once
#include "protocol/base/error.h"
bool bench_learn(int argc, char **argv, struct error *err);
bool bench_start(int argc, char **argv, struct error *err);
bool bench_delta(int argc, char **argv, struct error *err);
bool bench_bulk(int argc, char **argv, struct error *err);
bool bench_fetch(int argc, char **argv, struct error *err);
bool bench_posts(int argc, char **argv, struct error *err);
