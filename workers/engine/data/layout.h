/* layout.h - which of a row's columns are prompt, answer and tests: the usual layouts of data
 *
 * One table of the layouts that published data sets have. A row is recognised by the columns it has, unless the run names them.
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* The run's settings for columns; NULL or "": recognised. "reward_model.ground_truth" is a part of a column. */
struct dataset_columns {
    const char *prompt;      // column of the prompt: a text, a message, or a list of messages
    const char *answer;      // column of the answer
    const char *template;    // the prompt's text, with columns in braces: "{question}\nThink step by step."
    bool whole;              // the rows are conversations to learn from: an answer at their end stays
};
struct layout;
/* What layout_apply found in a row. */
struct row_form {
    const struct layout *layout;    // it was recognised as this; NULL: columns are named
    bool answered;                  // the assistant's answer ended it, and was removed
    bool as_is;                     // its prompt is the text in `prompt`
};
/* Is the template one: at least one column in it? */
MUST_USE bool prompt_template_check(const char *template, struct error *err);
/* Give row the form that dataset_row promises. Messages name columns, but not the place. */
MUST_USE bool layout_apply(json_t *row, const struct dataset_columns *columns, struct row_form *form, struct error *err);
/* In words, for the operator: "GSM8K's: prompt from 'question', answer from 'answer' after ####". */
void layout_describe(const struct layout *layout, const struct dataset_columns *columns, struct buf *out);
