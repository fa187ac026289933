/* lora.h - low-rank adapters on a frozen model: made, loaded, merged
 *
 * A model with an adapter keeps its base weights as they are. What model.h calls its weights, its tensors, its flat order and its
 * pieces are then the adapter's alone: the trainer has masters, moments and gradient for nothing else, a checkpoint and a publication
 * hold nothing else, and model_save writes PEFT's directory. The adapter has the model's dtype.
 *
 * Each product with an adapter is computed as y = W x + b, then t = s (A x), then y + B t, each rounded to the dtype, by the
 * operations that every forward pass uses: sampling, scoring and training give a token's log-prob the same bits. The alternative,
 * W + s B A rounded once and used everywhere, needs a second copy of the base and the gradient of whole matrices, and loses steps
 * smaller than half a unit of W's last place; here both sides pay a few small products per layer instead.
 *
 * Called by the thread that drives the device. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/model/lora_config.h"
#include "workers/engine/model/model.h"

/* Give m, which has no adapter, a new one: A uniform in +-1 / sqrt(in), as PEFT's default, drawn from seed, B zero; the same bytes for
 * the same shape, config, seed and dtype. train: it will be trained, which prepares the backward products. Do it before runs,
 * trainers, views or publications are made with m. ERR_UNSUPPORTED: the family has no module of that name. */
MUST_USE bool model_lora_new(struct model *m, const struct lora_config *c, uint64_t seed, bool train, struct error *err);
/* As model_lora_new, with the adapter in dir. Every tensor of it must be there with its shape, and no other. */
MUST_USE bool model_lora_load(struct model *m, const char *dir, bool train, struct error *err);
/* Which directory adapter_config.json names as the base, when m's adapter is saved. */
MUST_USE bool model_lora_base_set(struct model *m, const char *base, struct error *err);
/* What the adapter of m is; NULL: it has none. */
const struct lora_config *model_lora(const struct model *m);
/* Parameters of an adapter on a model of this shape; -1: see err. */
int64_t lora_n_param(const struct lora_config *c, const struct model_config *shape, struct error *err);
/* Would model_lora_load find an adapter for a model of this shape in dir? Reads headers only. */
MUST_USE bool lora_files_check(const char *dir, const struct model_config *shape, struct error *err);
/* Add the adapter to the base weights, W + s B A in fp32, rounded once to the dtype, and drop it: m is then a plain model. No run may
 * exist. The base must be m's own (not of a view). */
MUST_USE bool model_lora_merge(struct model *m, struct error *err);
/* Give a model without weights (model_new_shape) an adapter without memory. */
MUST_USE bool model_lora_shape(struct model *m, const struct lora_config *c, struct error *err);
/* A model that computes with base's weights, without its adapter: a reference, or the beginning of one with another adapter
 * (model_lora_load). Its weights are base's, which must outlive it and must not be written to. NULL: see err. */
struct model *model_view(const struct model *base, struct error *err);
