/* export.h - what each kind of export (export_kinds.h) does
 *
 * An exporter is a separate process. It reads the journal, never writes to it, and ends by itself when the run has ended and
 * everything is sent, unless it was asked to keep serving. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "protocol/base/error.h"

struct export_request {
    const char *run_dir;
    bool follow;                                  // continue while the run is going
    const char *series;                           // comma-separated names, NULL: all
    bool nodes;                                   // csv, jsonl: samples of hosts and GPUs instead of the steps' metrics
    const char *out_path;                         // file to write; NULL: standard output
    const char *listen;                           // openmetrics: HOST:PORT
    const char *token_file;                       // openmetrics: bearer token, or NULL
    const char *allowed_hosts;                    // openmetrics: more names of the server (own_hosts.h); NULL: the run's
    const char *webhook_file, *webhook_format;    // webhook: the address is in this file; slack, json or auto
    bool offline;                                 // wandb: write a directory for wandb sync instead of sending
};
typedef bool export_fn(const struct export_request *r, struct error *err);
/* Run the kind of this name. ERR_USAGE: there is none. */
MUST_USE bool export_run(const char *name, const struct export_request *r, struct error *err);
/* Open what an export writes to: --out, which must be a new file, or else standard output. NULL: see err. */
FILE *export_out(const struct export_request *r, struct error *err);
/* What was written so far is with the system; false: some of it is not. */
MUST_USE bool export_flush(const struct export_request *r, FILE *out, struct error *err);
MUST_USE bool export_close(const struct export_request *r, FILE *out, struct error *err);    // standard output stays open
/* All of these for one whole document. */
MUST_USE bool export_write(const struct export_request *r, const char *text, size_t len, struct error *err);

bool export_csv(const struct export_request *r, struct error *err);
bool export_jsonl(const struct export_request *r, struct error *err);
bool export_html(const struct export_request *r, struct error *err);
bool export_svg(const struct export_request *r, struct error *err);
bool export_tensorboard(const struct export_request *r, struct error *err);
bool export_webhook(const struct export_request *r, struct error *err);
bool export_openmetrics(const struct export_request *r, struct error *err);
bool export_wandb(const struct export_request *r, struct error *err);    // online or offline, as requested
bool export_wandb_online(const struct export_request *r, struct error *err);
bool export_wandb_offline(const struct export_request *r, struct error *err);
