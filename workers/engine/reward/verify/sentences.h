/* sentences.h - sentences and words as NLTK and IFEval cut them
 *
 * Instructions such as "at least 5 sentences" are counted with these upstream, so the cuts must be theirs. Lists are in the
 * pool. One thread per struct regexes. */
#pragma once
#include <stdint.h>
#include "workers/engine/reward/verify/regex.h"

struct spans {
    struct span *at;    // (n) in the pool
    int64_t n, cap;
};
bool spans_add(struct pool *p, struct spans *list, struct span s);
/* The parts between separators, as s.split(sep). */
struct spans spans_split(struct pool *p, struct span s, const char *sep);
/* IFEval's split_into_sentences: rules for initials, titles, web addresses and quotes, then every . ? ! ends one. */
struct spans sentences_rule(struct regexes *r, struct pool *p, struct span text);
/* Punkt (Kiss and Strunk 2006, Computational Linguistics 32), as NLTK's English model cuts. Its lists of abbreviations, sentence
 * starters and collocations are those of the model; of its 20 366 words' spellings only the frequent ones are kept, which
 * matter where a single initial ends a sentence. */
struct spans sentences_punkt(struct regexes *r, struct pool *p, struct span text);
/* NLTK's word_tokenize: Punkt's sentences, cut by the rules of the Penn Treebank. */
struct spans words_nltk(struct regexes *r, struct pool *p, struct span text);
