/* small_model.h - the sizes of a model that a test computes with in no time */
#pragma once
#include "workers/engine/model/config.h"

/* Two layers with grouped heads. Its random weights are large, so that what it says is far from uniform and a wrong context shows. */
static inline struct model_config small_model(int64_t vocab)
{
    return (struct model_config){ .family = FAMILY_QWEN2,
                                  .n_layer = 2,
                                  .d_model = 32,
                                  .n_head = 4,
                                  .n_kv_head = 2,
                                  .d_head = 16,
                                  .d_ff = 64,
                                  .vocab = vocab,
                                  .max_pos = 512,
                                  .rms_eps = 1e-6f,
                                  .rope.theta = 1e4,
                                  .tied = true,
                                  .qkv_bias = true,
                                  .bos = -1,
                                  .initializer_range = 0.3 };
}
