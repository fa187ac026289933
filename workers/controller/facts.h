/* facts.h - what the rules of decide.h look at, gathered from the run's state */
#pragma once
#include "workers/schedule/decide.h"

struct controller;
struct worker;
void facts_gather(const struct controller *c, const struct worker *w, struct facts *out);
