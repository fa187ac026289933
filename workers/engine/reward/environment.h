/* environment.h - the user's environment: a program that answers a model's turns (line_program.h)
 *
 * Every question is a line of JSON and has one answer, with the same id:
 *     in   {"id": 1, "op": "reset", "episode": "17.3", "item": 17, "sample": 3, "seed": 1234567, "row": {the dataset's line}}
 *     out  {"id": 1, "observation": "..."}    or "messages": [...], or neither: the row's own prompt
 *     in   {"id": 2, "op": "step", "episode": "17.3", "text": "...", "content": "...", "tool_calls": [{"name": ..., "arguments": {...}}]}
 *     out  {"id": 2, "observation": "...", "role": "tool", "reward": 0.5, "done": false, "ans_acc": 1}
 *     in   {"id": 3, "op": "end", "episode": "17.3"}    it will not be continued
 *     out  {"id": 3}
 *     or   {"id": 2, "error": "why this episode cannot go on"}
 * One program plays many episodes, in turns. Everything it may depend on is in the questions: the samples of an item have the
 * same row and seed, and must begin alike.
 *
 * A turn carries the whole conversation, so nothing of an episode is kept anywhere but in the program. When the program has
 * ended or was killed, or another one gets the turn, the episode is played again from its reset with the same texts; a program
 * that answers the same way then leaves the same bytes. A turn that is asked twice is answered twice, and played once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"

/* What is asked. All borrowed until the call returns. */
struct turn {
    int64_t item, sample;
    int64_t seed;               // 0 to 2^53 - 1
    const char *row;            // JSON
    int64_t n_text;             // 0: how does the episode begin?
    const char *const *text;    // (n_text) the model's turns so far, UTF-8
    const char *from;           // of a harness: who samples, "WORKER/START", START random; NULL otherwise
    int64_t serial, oldest;     // its number for the item there, never given twice; no item below oldest is inside any more
};
struct turn_answer {
    enum score_state state;    // SCORE_OK, or why the sample is left out (reason says it in words)
    char reason[48];
    char *json;    // with SCORE_OK the program's answer, an object; owned, for free
    bool later;    // there is none yet, and the same is to be asked again; json is NULL
};
struct environment;
/* Start a program. errors: as line_program_new takes it. Returns it for environment_free; NULL: see err. */
struct environment *environment_new(const char *command, double timeout_s, int errors, struct error *err);
void environment_free(struct environment *e);    // NULL is fine
void environment_turn(struct environment *e, const struct turn *t, struct turn_answer *out);
