/* language.h - which language is a text in? For the instructions that ask for one
 *
 * Upstream asks langdetect, which compares letter groups with 55 profiles. Here the script decides where it belongs to one
 * language, and frequent words and letters where several share it: the 55 languages of langdetect, by its codes. Short or
 * mixed texts may be told differently. Any thread. */
#pragma once
#include "workers/engine/reward/verify/text.h"
/* The code ("en", "pt", "zh-cn"), or NULL when the text has no letters, where langdetect raises an exception. */
const char *language_of(struct pool *p, struct span text);
