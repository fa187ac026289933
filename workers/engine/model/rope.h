/* rope.h - the frequencies of rotary position embedding, as config.json describes them
 *
 * Part of struct model_config: plain data; any thread. */
#pragma once
#include "workers/engine/model/fields.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_YARN,
    ROPE_LLAMA3,
};
/* What a scaling adds to the base frequencies; which of these mean something depends on the type. */
struct rope {
    double theta;    // base of the frequencies
    enum rope_type type;
    double factor;
    double low_freq_factor, high_freq_factor;    // llama3
    double beta_fast, beta_slow;                 // yarn: turns within original_max_pos where the blend ends and begins
    double attention_factor;                     // yarn: of cos and sin; NAN: follows from the rest
    double mscale, mscale_all_dim;               // yarn: NAN when not given
    bool no_truncate;                            // yarn: the blend's bounds are not whole pairs
    int64_t original_max_pos;                    // llama3 and yarn: positions before the scaling
};

/* Read rope_theta and rope_scaling (or rope_parameters, as transformers 5 writes it) of a config.json; theta is the
 * family's default, max_pos its max_position_embeddings. False: a key is wrong, or the type is not one of these. */
MUST_USE bool rope_read(struct rope *r, const struct fields *top, double theta, int64_t max_pos, struct error *err);
/* Set both in a config.json that is being made; false: no memory. */
MUST_USE bool rope_write(const struct rope *r, json_t *config);
/* Write the inverse frequencies of heads d wide, (d / 2) doubles, and return the factor of cos and sin (transformers 5,
 * modeling_rope_utils.py; yarn: arXiv 2309.00071). For dynamic these hold up to max_position_embeddings and no further:
 * the reference changes them with the longest sequence seen, after which a token's log-prob would depend on others. */
double rope_inv_freq(const struct rope *r, int64_t d, double *inv_freq);
