#include "protocol/settings/export_kinds.h"
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/settings/knobs.h"

const struct export_kind_row export_kinds[EXPORT_KIND_N] = {
    [EXPORT_CSV] = { "csv", NULL, "comma-separated values, one row per step" },
    [EXPORT_JSONL] = { "jsonl", NULL, "JSON lines, one per step" },
    [EXPORT_HTML] = { "html", NULL, "one page to attach or print: charts, evaluations, changes, alarms, settings, samples" },
    [EXPORT_SVG] = { "svg", NULL, "charts as a picture: of --series, or of evaluations, reward, entropy and length" },
    [EXPORT_TENSORBOARD] = { "tensorboard", "tensorboard", "event files in RUN_DIR/export/tensorboard (or --out DIR)" },
    [EXPORT_WANDB] = { "wandb", "wandb", "send to Weights & Biases, or with --offline write a directory for 'wandb sync'" },
    [EXPORT_WEBHOOK] = { "webhook", "alert_webhook_file",
                         "send alerts and the run's end to the address in --webhook-file, as Slack or any other webhook takes them" },
    [EXPORT_OPENMETRICS] = { "openmetrics", "metrics_listen", "serve the newest values over HTTP at --listen HOST:PORT" },
};

static const struct knob *setting_of(enum export_kind kind)
{
    struct error none;
    return export_kinds[kind].setting ? knob_find(export_kinds[kind].setting, &none) : NULL;
}

bool export_wanted(const struct run_config *c, enum export_kind kind)
{
    const struct knob *k = setting_of(kind);
    struct buf text = BUF_INIT;
    bool wanted = k && strcmp(knob_text(k, c, &text), k->def) != 0;
    buf_release(&text);
    return wanted;
}

bool exports_leave_off(struct run_config *c, struct error *err)
{
    for (int i = 0; i < EXPORT_KIND_N; i++) {
        const struct knob *k = setting_of((enum export_kind)i);
        if (k && !run_config_set(c, k->name, k->def, FROM_FLAG, NULL, err))
            return false;
    }
    return true;
}
