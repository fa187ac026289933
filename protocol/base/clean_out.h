/* clean_out.h - what is printed drives no terminal, whoever wrote it
 *
 * Names and texts of environments, engines, hubs and journals reach an operator through a hundred prints and every error's sentence. So
 * standard output and standard error themselves are clean: a control character (C0 but newline and tab, DEL, C1), or one that turns the
 * direction of text (U+202A..202E, U+2066..2069), is printed as \u and four hexadecimal digits, which is also what JSON has for it; a byte
 * that is not UTF-8 as U+FFFD. The screen (console/tui/terminal.c) writes past both. Any thread, as stdio allows. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/base/error.h"
/* A stream that writes cleaned text to fd, which stays the caller's. Buffered as stdio would: by line on a terminal. NULL: no memory. */
FILE *clean_stream(int fd);
/* Put such streams in the place of stdout and stderr. For main, before anything is printed. */
MUST_USE bool clean_out_begin(struct error *err);
/* Print one line, whatever texts it holds: a newline in them, which would begin a line of its own, is printed as \u000a. */
bool line_print(FILE *out, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Is a character one that a terminal would obey? */
bool terminal_obeys(uint32_t character);
