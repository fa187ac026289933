/* Resuming with a different number of workers: devices and sizes with which the run continues as before, as far as possible; and
 * with other settings. */
#include "console/train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/run/resume_flags.h"

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

static void device_add(struct run_config *c, const char *device)
{
    size_t len = strlen(c->devices);
    snprintf(c->devices + len, sizeof c->devices - len, "%s%s", len ? "," : "", device);    // list too long: devices_choose reports that
}

/* The previous devices, as many as are needed now: the first of them, or all plus more of their kind. */
static void devices_fit(struct run_config *c)
{
    char list[sizeof c->devices], device[64], *rest = list, *word;
    int64_t n = run_config_n_device(c), have = 0;
    memcpy(list, c->devices, sizeof list);
    c->devices[0] = 0;
    for (; have < n && (word = strsep(&rest, ",")); have++)
        device_add(c, word);
    int kind = (int)strcspn(list, ":");
    for (int64_t k = 0; have < n; k++) {
        struct run_part part;
        struct error none;
        snprintf(device, sizeof device, "%.*s:%" PRId64, MIN(kind, 32), list, k);
        if (run_config_part(c, device, &part, &none))    // it is already in the list
            continue;
        device_add(c, device);
        have++;
    }
}

/* One of the two sizes that count prompts per worker: keep the total over all workers if it can be divided evenly. part: the
 * setting that must divide it, or NULL. */
static void size_keep(const struct train *t, const char *what, const char *name, int64_t *size, int64_t n_before, int64_t n,
                      const char *part_name, int64_t *part, struct buf *notes)
{
    int64_t all = *size * n_before, was = *size;
    if (n == n_before)
        return;
    if (!knob_given(t, name) && all % n == 0) {
        *size = all / n;
        if (part && !knob_given(t, part_name))
            *part = common_divisor(*part, *size);
        buf_fmt(notes, "note: '%s' is %" PRId64 " instead of %" PRId64 ", so that %s stays %" PRId64 " prompts\n", name, *size, was, what,
                all);
    } else {
        buf_fmt(notes,
                "note: %s is %" PRId64 " prompts instead of %" PRId64 " from the next one on: not the same bytes as a run without "
                "this change\n",
                what, *size * n, all);
    }
}

void workers_change(struct train *t, const struct run_config *before, struct buf *notes)
{
    struct run_config *c = &t->config;
    int parts = run_config_sum_parts(c), parts_before = run_config_sum_parts(before);
    if (c->num_trainers == before->num_trainers && c->num_inferencer == before->num_inferencer
        && c->trainers_per_node == before->trainers_per_node && c->tensor_parallel_size == before->tensor_parallel_size
        && c->pipeline_parallel_size == before->pipeline_parallel_size
        && c->producer_tensor_parallel_size == before->producer_tensor_parallel_size && parts == parts_before
        && c->grad_group == before->grad_group && c->share_prompts == before->share_prompts && strcmp(c->placement, before->placement) == 0)
        return;
    if (!knob_given(t, "devices"))
        devices_fit(c);
    size_keep(t, "a rollout step", "inference_batch_size", &c->inference_batch_size, before->num_inferencer, c->num_inferencer,
              "inference_microbatch_size", &c->inference_microbatch_size, notes);
    size_keep(t, "an optimizer step", "train_batch_size", &c->train_batch_size, before->num_trainers, c->num_trainers, NULL, NULL, notes);
    if (c->num_trainers != before->num_trainers)
        buf_fmt(notes,
                "note: 'num_trainers' is %" PRId64 " instead of %" PRId64 ": prompt order, random numbers and optimizer state are kept, "
                "and so is the order in which gradients are added\n",
                c->num_trainers, before->num_trainers);
    if (c->trainers_per_node != before->trainers_per_node)
        buf_fmt(notes, "note: 'trainers_per_node' is %" PRId64 " instead of %" PRId64 "\n", c->trainers_per_node,
                before->trainers_per_node);
    if (c->tensor_parallel_size != before->tensor_parallel_size)
        buf_fmt(notes, "note: 'tensor_parallel_size' is %" PRId64 " instead of %" PRId64 "\n", c->tensor_parallel_size,
                before->tensor_parallel_size);
    if (c->pipeline_parallel_size != before->pipeline_parallel_size)
        buf_fmt(notes, "note: 'pipeline_parallel_size' is %" PRId64 " instead of %" PRId64 "\n", c->pipeline_parallel_size,
                before->pipeline_parallel_size);
    if (c->producer_tensor_parallel_size != before->producer_tensor_parallel_size)
        buf_fmt(notes, "note: 'producer_tensor_parallel_size' is %" PRId64 " instead of %" PRId64 "\n", c->producer_tensor_parallel_size,
                before->producer_tensor_parallel_size);
    if (parts != parts_before)
        buf_fmt(notes, "note: 'sum_parts' is %d instead of %d: not the same bytes as a run without this change\n", MAX(parts, 1),
                MAX(parts_before, 1));
    if (c->grad_group != before->grad_group)
        buf_fmt(notes, "note: 'grad_group' is %" PRId64 " instead of %" PRId64 ": not the same bytes as a run without this change\n",
                c->grad_group, before->grad_group);
    if (c->share_prompts != before->share_prompts)
        buf_fmt(notes, "note: 'share_prompts' is %s instead of %s: not the same bytes as a run without this change\n",
                c->share_prompts ? "true" : "false", before->share_prompts ? "true" : "false");
    if (parts == parts_before && c->grad_group == before->grad_group && c->share_prompts == before->share_prompts
        && c->inference_batch_size * c->num_inferencer == before->inference_batch_size * before->num_inferencer
        && c->train_batch_size * c->num_trainers == before->train_batch_size * before->num_trainers)
        buf_str(notes, "note: everything is kept: the weights will have the same bytes as in a run without this change\n");
}

bool flags_note(struct train *t, const struct run_config *before, struct error *err)
{
    struct buf was = BUF_INIT, is = BUF_INIT;
    bool ok = true;
    for (int i = 0; ok && i < n_knobs; i++)
        if (t->value[i] && knob_is_live(&knobs[i]))
            ok = resume_flags_add(&t->flags, knobs[i].name, knob_text(&knobs[i], before, &was), knob_text(&knobs[i], &t->config, &is), err);
    buf_release(&was);
    buf_release(&is);
    return ok;
}
