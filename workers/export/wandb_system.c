/* Samples of hosts and GPUs under the names that fill wandb's system charts: "gpu.0.gpu", "memory_percent", ... after "system.".
 * The node on which the run began has the bare names; others get the suffix "/l:NODE", by which the charts group. A GPU that the
 * run's processes use is also reported as "gpu.process.0.…", as the real client does. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/run/telemetry.h"
#include "workers/export/wandb.h"

static bool head_see(void *arg, const struct journal_sample *s)
{
    snprintf(arg, WANDB_NODE_MAX, "%s", s->node);
    return false;
}

bool wandb_head_find(char head[WANDB_NODE_MAX], struct journal *j, struct error *err)
{
    return head[0] || journal_samples_read(j, 0, head_see, head, err);
}

static bool of_process(enum gpu_field f)
{
    static const enum gpu_field repeated[] = { GPU_UTIL, GPU_MEM_UTIL, GPU_MEM_PERCENT,   GPU_MEM_USED,
                                               GPU_TEMP, GPU_POWER,    GPU_POWER_PERCENT, GPU_POWER_LIMIT };
    for (size_t i = 0; i < ARRAY_SIZE(repeated); i++)
        if (repeated[i] == f)
            return true;
    return false;
}

void wandb_system_each(const struct journal_sample *s, const char *head, wandb_system_fn *fn, void *arg)
{
    bool ours[NODE_GPUS] = { false };
    char key[256], label[160] = "";
    int gpu;
    if (strcmp(s->node, head) != 0)
        snprintf(label, sizeof label, "/l:%.150s", s->node);
    for (int i = 0; i < s->n; i++)
        if (telemetry_find(s->figure[i].name, &gpu) == &gpu_fields[GPU_RUN_MEM])
            ours[gpu] = s->figure[i].value > 0;
    for (int i = 0; i < s->n; i++) {
        const struct telemetry_field *f = telemetry_find(s->figure[i].name, &gpu);
        double v = s->figure[i].value;
        if (!f || !f->wandb || !isfinite(v))
            continue;
        v *= f->wandb_scale;
        if (gpu < 0) {
            snprintf(key, sizeof key, "%s%s", f->wandb, label);
            fn(arg, key, v);
            continue;
        }
        snprintf(key, sizeof key, "gpu.%d.%s%s", gpu, f->wandb, label);
        fn(arg, key, v);
        if (ours[gpu] && of_process((enum gpu_field)(f - gpu_fields))) {
            snprintf(key, sizeof key, "gpu.process.%d.%s%s", gpu, f->wandb, label);
            fn(arg, key, v);
        }
    }
}

static void key_print(void *arg, const char *key, double v)
{
    struct buf *out = arg;
    char full[280];
    int n = snprintf(full, sizeof full, "system.%s", key);
    buf_char(out, ',');
    json_text_print(out, full, (size_t)n, JSON_TEXT_UTF8);
    buf_char(out, ':');
    json_number_print(out, v);
}

void wandb_system_print(struct buf *out, const struct journal_sample *s, const char *head, double start_s)
{
    buf_fmt(out, "{\"_wandb\":true,\"_timestamp\":%.6f,\"_runtime\":%.3f", s->wall_s, fmax(0, s->wall_s - start_s));
    wandb_system_each(s, head, key_print, out);
    buf_char(out, '}');
}
