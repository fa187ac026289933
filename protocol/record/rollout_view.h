/* rollout_view.h - a rollout group as people read it: texts, rewards, advantages, and what is known of each token
 *
 * Made from a group's message (protocol/record/group_msg.h), whether it came over the wire or from the run's rollout file. Texts are cut to
 * the sizes given here. Owned by whoever holds the struct; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/record/advantage.h"

#define ROLLOUT_SAMPLES 64        // most samples of a group that are shown
#define ROLLOUT_TEXT_MAX 16384    // bytes of one prompt or completion kept

struct mval;
struct sample_view {
    char *text;                      // owned, NUL-terminated UTF-8 or not quite
    double reward;                   // NAN: left out or not scored
    double adv;                      // advantage; NAN: unknown
    double ans_acc;                  // NAN: unknown
    double part[GROUP_PARTS_MAX];    // of the reward; NAN where not given
    int64_t n_tok;
    bool cut;    // finish reason length
    char reason[64];
    /* by token, owned; NULL: not known. Those of an older run lack piece. */
    int32_t *token;     // (n_tok)
    float *logp;        // (n_tok) natural log, when it was drawn
    float *entropy;     // (n_tok) nat, that it was drawn at; NULL also where the run does not keep it
    int32_t *newer;     // (n_tok) optimizer steps that the weights which drew it are newer than the group's version; NULL: all 0
    uint8_t *mask;      // (n_tok) 0: given by an environment; NULL: all 1
    uint16_t *piece;    // (n_tok) bytes of text that it gave
};
struct rollout_view {
    int64_t item, step;
    int64_t version;               // optimizer steps of the weights that sampled it; -1: unknown
    int64_t line;                  // line of the data's file, from 1; -1: unknown
    char *prompt;                  // owned
    char gold[128];                // the right answer; "": unknown
    struct sample_view *sample;    // (n_sample); owned
    int n_sample;
};
/* Begin a group in r, which is zeroed or holds an older one. False: no memory, r is empty. */
bool rollout_view_begin(struct rollout_view *r, int64_t item, int64_t step, const char *prompt, size_t len);
void rollout_view_release(struct rollout_view *r);
/* Add a sample, of which no more is known than this. */
void rollout_sample(struct rollout_view *r, const char *text, size_t len, double reward, int64_t n_tok, bool cut, const char *reason);
/* What a sample's reward is at a glance: '1' above 0.5, '+' above 0, '0' not, '?' unscored. */
char sample_sign(const struct sample_view *s);
/* Fill r from a group's message, or from what the run sends to screens. Fields that are missing or do not fit stay unknown. False: no
 * memory, r is empty. */
bool rollout_view_read(struct rollout_view *r, const struct mval *v, enum advantage_form form);
/* As rollout_view_read, of the record at offset of a rollout file. False: see err, r is empty. */
MUST_USE bool rollout_view_load(struct rollout_view *r, const char *path, int64_t offset, int64_t size_bytes, enum advantage_form form,
                                struct error *err);
