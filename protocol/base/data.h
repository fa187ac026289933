/* data.h - where the program's own data files are (themes): beside the source, the binary or in the installed share folder
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
/* The path of data file rel ("themes/dark.theme") into out of size bytes: the first that exists of RC_DATA (environment),
 * BINARY/../share/rollcall, the installed data folder, and the source tree it was built from. False: there is none. */
bool data_path(char *out, size_t size, const char *rel);
