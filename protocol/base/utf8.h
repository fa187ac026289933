/* utf8.h - is it UTF-8? Asked of every text from outside before a library reads it
 *
 * Libraries take strings that end at a NUL, and some treat a byte that is not UTF-8 as the end of their input: the rest would be
 * lost silently. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
/* Look at the character that begins at p (Unicode 14, table 3-7). Returns its length when it is complete; 0 when the bytes are a
 * valid start but end too early; minus the length of the maximal invalid part otherwise. */
int utf8_look(const uint8_t *p, size_t len);
/* The character in the len bytes at p that utf8_look has found complete. */
uint32_t utf8_character(const uint8_t *p, int len);
/* How many bytes from the start are valid UTF-8 (len when all are). *is_ascii says whether those are all below 0x80,
 * *may_change whether any stands for a character from U+0300 up: below, NFC changes nothing. Both may be NULL. */
size_t utf8_valid_len(const uint8_t *p, size_t len, bool *is_ascii, bool *may_change);
/* How many bytes of text fit into most without a character that is cut in two; text is UTF-8. */
size_t utf8_cut(const char *text, size_t len, size_t most);
/* Copy as many whole characters of text as fit into to's size bytes with a NUL after them; size is at least 1. */
void utf8_copy(char *to, size_t size, const char *text, size_t len);
/* Is text UTF-8 without a NUL? If not, err is ERR_DATA and names path, line and byte. */
MUST_USE bool utf8_check(const char *text, size_t len, const char *path, struct error *err);
/* A copy of at most `most` bytes of text, with a blank for each NUL, since it ends at one; for free. NULL: no memory. */
char *text_keep(const char *text, size_t len, size_t most);
