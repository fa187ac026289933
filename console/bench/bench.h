/* bench.h - the entry point of each measurement: argv[0] is its name; one file bench_NAME.c each, here or next to what it measures */
#pragma once
#include "protocol/base/error.h"
bool bench_journal(int argc, char **argv, struct error *err);
bool bench_export(int argc, char **argv, struct error *err);
bool bench_gemm(int argc, char **argv, struct error *err);
bool bench_cpu(int argc, char **argv, struct error *err);
bool bench_decode(int argc, char **argv, struct error *err);
bool bench_code(int argc, char **argv, struct error *err);
bool bench_tokenize(int argc, char **argv, struct error *err);
bool bench_data(int argc, char **argv, struct error *err);
bool bench_verify(int argc, char **argv, struct error *err);
bool bench_attention(int argc, char **argv, struct error *err);
bool bench_train(int argc, char **argv, struct error *err);
bool bench_ranks(int argc, char **argv, struct error *err);
bool bench_publish(int argc, char **argv, struct error *err);
