/* ask.h - a question to the person at the terminal */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

/* Print "question [preset]: " on stderr and read a line from stdin into out, without blanks around it; an empty line gives the preset
 * ("": there is none, and the question comes again). ERR_USAGE: the input has ended; names the flag that would have answered. */
MUST_USE bool ask_text(char *out, size_t size, const char *question, const char *preset, const char *flag, struct error *err);
/* "question [Y/n]: "; no at the end of the input. */
bool ask_yes(const char *question);
