/* gold.h - the answer at the end of a row's text
 *
 * Any thread. */
#pragma once
#include <jansson.h>

/* The answer as a string for json_decref, from a column's string or number. A number keeps nearly its text from the file: integers
 * exactly, others in the shortest form that reads back. From a string it is what follows the last "####" if there is one (GSM8K),
 * without commas in numbers; without blanks around it. NULL: no memory. */
json_t *gold_text(const json_t *column);
/* The content of the last \boxed{...} of a text (MATH), braces balanced; NULL: there is none, or no memory. */
json_t *gold_boxed(const char *text);
