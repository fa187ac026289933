/* pattern.h - the hub's patterns of paths
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
/* Does path fit? '*' and '?' stay within a folder, "**" goes over folders and may stand for none before its '/', [abc] and [!a-c] are
 * one character. Takes time of the product of both lengths at most; paths above 1000 bytes never fit. */
bool path_matches(const char *pattern, const char *path);
