/* commands.h - every subcommand's entry: argv[0] is its name; false: err says why, and its code is the exit status
 *
 * One command, one file NAME_cmd.c in console/ (those an operator types) or in the workers/ folder whose process it is. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
bool score_cmd(int argc, char **argv, struct error *err);
bool pull_cmd(int argc, char **argv, struct error *err);
bool template_cmd(int argc, char **argv, struct error *err);
bool tokenize_cmd(int argc, char **argv, struct error *err);
bool bench_cmd(int argc, char **argv, struct error *err);
bool export_cmd(int argc, char **argv, struct error *err);
bool doctor_cmd(int argc, char **argv, struct error *err);
bool settings_cmd(int argc, char **argv, struct error *err);
bool metrics_cmd(int argc, char **argv, struct error *err);
bool scorer_cmd(int argc, char **argv, struct error *err);
bool console_cmd(int argc, char **argv, struct error *err);
bool simulate_cmd(int argc, char **argv, struct error *err);
bool generate_cmd(int argc, char **argv, struct error *err);
bool eval_cmd(int argc, char **argv, struct error *err);
bool logprobs_cmd(int argc, char **argv, struct error *err);
bool random_model_cmd(int argc, char **argv, struct error *err);
bool sft_cmd(int argc, char **argv, struct error *err);
bool join_cmd(int argc, char **argv, struct error *err);
bool gate_cmd(int argc, char **argv, struct error *err);
bool uplink_cmd(int argc, char **argv, struct error *err);
bool agent_cmd(int argc, char **argv, struct error *err);
bool controller_cmd(int argc, char **argv, struct error *err);
bool worker_cmd(int argc, char **argv, struct error *err);
bool train_cmd(int argc, char **argv, struct error *err);
bool ctl_cmd(int argc, char **argv, struct error *err);
bool rollouts_cmd(int argc, char **argv, struct error *err);
bool exporter_cmd(int argc, char **argv, struct error *err);
