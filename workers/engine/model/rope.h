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
    ROPE_LONG,
};
#define ROPE_PAIRS_MAX 128
/* What a scaling adds to the base frequencies; which of these mean something depends on the type. */
struct rope {
    double theta;      // base of the frequencies
    double partial;    // part of each head's dimensions that turns, the first ones; 0: all (Phi-4-mini: 0.75)
    enum rope_type type;
    double factor;
    double low_freq_factor, high_freq_factor;    // llama3
    double beta_fast, beta_slow;                 // yarn: turns within original_max_pos where the blend ends and begins
    double attention_factor;                     // yarn and longrope: of cos and sin; NAN: follows from the rest
    double mscale, mscale_all_dim;               // yarn: NAN when not given
    bool no_truncate;                            // yarn: the blend's bounds are not whole pairs
    int64_t original_max_pos;                    // llama3, yarn and longrope: positions before the scaling
    int64_t n_ext;                               // longrope: numbers in each of the next two, half of what turns
    bool is_long;                                // longrope: long_ext is in use, see model_length_set
    double short_ext[ROPE_PAIRS_MAX];            // frequencies are divided by these where no sequence exceeds original_max_pos
    double long_ext[ROPE_PAIRS_MAX];             // ... and by these where one may
};

/* What a family expects to read. */
struct rope_family {
    double theta;                // of a missing rope_theta
    bool partial;                // it has partial_rotary_factor
    double part;                 // of a missing one; 0: 1
    bool longrope;               // it has this type, also under the names su and yarn (Phi-3), and no other
    bool ignores_flat;           // its class takes rope_parameters only with an object per kind of layer, and reads nothing else there
    int64_t original_max_pos;    // of a missing original_max_position_embeddings; 0: max_position_embeddings
    double local_theta;          // of layers with a window, which have frequencies of their own, without a scaling; 0: no difference
    const char *local_key;       // where config.json has it, or NULL
};
/* Read rope_theta and rope_scaling (or rope_parameters, as transformers 5 writes it) of a config.json; max_pos is its
 * max_position_embeddings, d_head the heads' width. local: of layers with a window, if the family has it. False: a key is wrong, or
 * the type is not one of these. */
MUST_USE bool rope_read(struct rope *r, struct rope *local, const struct fields *top, const struct rope_family *f, int64_t max_pos,
                        int64_t d_head, struct error *err);
/* Set these in a config.json that is being made; false: no memory. */
MUST_USE bool rope_write(const struct rope *r, const struct rope *local, const struct rope_family *f, json_t *config);
/* How many of a head's dimensions turn. */
int64_t rope_dims(const struct rope *r, int64_t d_head);
/* Longest sequence that the frequencies hold for; those of default, linear, yarn and llama3 hold for all, INT64_MAX. max_pos:
 * max_position_embeddings. */
int64_t rope_longest(const struct rope *r, int64_t max_pos);
/* Write the inverse frequencies where d dimensions turn, (d / 2) doubles, and return the factor of cos and sin (transformers 5,
 * modeling_rope_utils.py; yarn: arXiv 2309.00071; longrope: arXiv 2402.13753). */
double rope_inv_freq(const struct rope *r, int64_t d, double *inv_freq);
