/* data.h - where the program's own data files are (themes): in the source tree, next to the binary or in the installed share folder
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
/* Write the path of data file rel ("themes/dark.theme") into out of size bytes. The first folder that has it wins: RC_DATA
 * (environment), BINARY/../share/rollcall, the installed data folder, the source tree of the build. False: none has it. */
bool data_path(char *out, size_t size, const char *rel);
