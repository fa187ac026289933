/* judge.h - a language model that judges, asked over HTTP as OpenAI's chat completions
 *
 * Three attempts, after waits of 1 and 2 seconds, for what may pass: no connection, a time-out, 429 and 5xx. A failure is a
 * failure: the sample is left out and counted, never scored 0. All requests of a process share one budget. One thread per
 * struct judge. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/reward/reward.h"
struct judge;
/* o->llm_judge_url: "http://HOST:PORT/v1", or with /chat/completions at its end. Does not connect yet. */
struct judge *judge_new(const struct verify_options *o, struct error *err);
void judge_free(struct judge *j);
/* Ask; answer gets the text of the first choice, without <think> blocks. system may be NULL. ERR_FULL: the budget is used up. */
MUST_USE bool judge_ask(struct judge *j, const char *system, const char *user, size_t user_len, double temperature, struct buf *answer,
                        struct error *err);
/* The score in an answer of the form {"REASONING": ..., key: ...}, in a ``` block or not; where that is not JSON, the one after key and a
 * colon. It is a number on the scale from 0 to full, or names its own scale: "2/10", "2 out of 10", "20%". *score is from 0 to 1. False:
 * there is none, or it lies outside its scale, so that nobody can tell what the judge meant; it is never clamped. text ends with a NUL. */
bool judge_score(const char *text, size_t len, const char *key, double full, double *score);
/* The last JSON object in a text, with doubled braces made single where nothing else is one. A new reference, or NULL. */
json_t *judge_json_object(const char *text, size_t len);
