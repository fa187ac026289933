/* episodes_parts.h - an item with an environment and its samples, for the files that lead them: episodes.c, episode_groups.c, sampling.c
 *
 * The engine's thread owns all of it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "workers/engine/sampler/prompt.h"
#include "workers/worker/episodes.h"
#include "workers/worker/session.h"

#define SAMPLE_BITS 20

enum episode_state {
    EPISODE_ASKED,
    EPISODE_READY,
    EPISODE_DRAWS,
    EPISODE_OVER,
};
struct episode {    // a sample
    enum episode_state state;
    int64_t n_tok, turn_at;    // tokens after the prompt; where its present turn begins
    int32_t *token;            // (max_new_tok) owned, as the three below
    float *logp, *entropy;
    int32_t *newer;
    uint8_t *mask;
    bool ended, is_stop;    // the turn has, and by an end token
    int64_t n_turn;         // turns the model has taken
    char **text;            // (n_turn) owned
    double sum, last;       // of the turns' rewards; 0 without any
    float acc;              // NAN: the environment has not said
    enum finish_reason finish;
    enum score_state score;    // SCORE_NONE, or why it is left out
    char reason[48];
    /* with a harness; its tokens are in the session then, and n_tok counts those that were drawn */
    struct session *session;     // owned; NULL: an environment that answers turns
    struct sampling sampling;    // of the reply that is drawn
    int64_t version;             // that drew its last token
};
struct episode_item {
    struct episode_item *next;
    int64_t serial;
    int64_t item, prompt_row, rollout_step;
    struct sampling sampling;
    char *row;                   // the dataset's line, JSON
    int64_t seed;                // for the environment
    enum episode_state state;    // ASKED, READY and then DRAWS
    struct token_list prompt;
    bool chat;          // the prompt was messages
    json_t *tools;      // that it had; NULL: none; owned
    int64_t version;    // that drew its first token; -1: none yet
    int64_t start_ns;
    int32_t n_sample, n_over;
    struct episode *sample;    // (n_sample)
};
struct episodes {
    bool harness;
    struct session_config session;    // with a harness
    struct episode_item *item;        // oldest first
    int64_t n_item, next_serial;
    struct group **finished;    // (n_finished) owned, in the order of finishing
    int64_t n_finished, cap_finished;
};

/* ---- episodes.c ---- */
/* Free an item that is not in the list. */
void episode_item_free(struct episode_item *it);
/* Take what environments have answered. */
void episode_answers_take(struct engine *e);
/* Submit what is ready, until the generator is full. */
MUST_USE bool ready_submit(struct engine *e, struct error *err);
/* A sample's turn has ended: note its text, and ask the environment unless the sample is cut. */
MUST_USE bool turn_end(struct engine *e, struct episode_item *it, int32_t i, struct error *err);

/* ---- episode_groups.c ---- */
/* Make the groups of items that have ended. */
MUST_USE bool items_finish(struct engine *e, struct error *err);
