/* text.h - UTF-8 from any source as columns on a terminal: decode, width, wrap
 *
 * Pure functions; any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
/* Decode the code point at s (len > 0 bytes) into *cp; returns the bytes it takes. Broken UTF-8 gives U+FFFD and one byte. */
size_t text_decode(const char *s, size_t len, uint32_t *cp);
/* Append cp as UTF-8 to out (room for 4 bytes); returns the bytes. */
size_t text_encode(uint32_t cp, char *out);
/* What is drawn for cp: itself, a visible sign if a terminal would act on it or hide it, or 0: nothing at all. */
uint32_t text_visible(uint32_t cp);
/* Columns of a code point that text_visible gave: 0 (combining), 1 or 2. */
int text_width(uint32_t cp);
/* Columns of a whole text as cells_text draws it. */
int text_columns(const char *s, size_t len);
/* The first line of s when wrapped to w columns: returns its bytes (without the line's end) and in *next where the following
 * line starts. Breaks at newlines, else after the last blank that fits, else anywhere; always advances by at least one byte. */
size_t text_wrap(const char *s, size_t len, int w, size_t *next);
