/* gold.h - the answer that a row's text ends in
 *
 * Any thread. */
#pragma once
#include <jansson.h>

/* The answer as a string for json_decref, of a column's string or number. A number has the text it has in the file, near enough:
 * integers exactly, others in the shortest form that reads back. Of a string it is what follows the last "####" when there is one
 * (GSM8K), and there commas in numbers go; without blanks around it. NULL: no memory. */
json_t *gold_text(const json_t *column);
/* What the last \boxed{...} of a text holds (MATH), braces balanced; NULL: there is none, or no memory. */
json_t *gold_boxed(const char *text);
