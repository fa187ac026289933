#include "workers/export/export.h"

const struct export_kind export_kinds[] = {
    { "csv", export_csv, "comma-separated values, one row per step" },
    { "jsonl", export_jsonl, "JSON lines, one per step" },
    { "tensorboard", export_tensorboard, "event files in RUN_DIR/export/tensorboard (or --out DIR)" },
    { "wandb", export_wandb, "send to Weights & Biases, or with --offline write a directory for 'wandb sync'" },
    { "webhook", export_webhook,
      "send alerts and the run's end to the address in --webhook-file, as Slack or any other webhook takes them" },
    { "openmetrics", export_openmetrics, "serve the newest values over HTTP at --listen HOST:PORT" },
};
const int n_export_kinds = ARRAY_SIZE(export_kinds);
