/* prompt_lines.h - on which line of the data's file each usable prompt stands
 *
 * The workers leave out rows whose prompts are too long, and files have blank lines, so prompts are not simply lines. A run keeps the
 * places as int64 pairs (usable prompt from 0, its line from 1), one for each prompt that does not stand on the line after its
 * predecessor's: on the wire in 'done' of a load, in the journal as the value "lines". Empty: there are too many such places. Any
 * thread. */
#pragma once
#include <stdint.h>
#include "protocol/base/buf.h"

#define PROMPT_LINES_MAX 65536    // pairs that are kept: 1 MiB
/* The line of a prompt; -1: not known. */
int64_t prompt_line(const struct buf *pairs, int64_t row);
/* The prompt on a line, of n_row; -1: none of them stands there. */
int64_t prompt_on_line(const struct buf *pairs, int64_t n_row, int64_t line);
