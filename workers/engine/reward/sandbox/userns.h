/* userns.h - why no user namespace can be made here, and what to do about it */
#pragma once
#include <stdbool.h>
#include <stddef.h>
/* Write the setting below sysctl_dir (/proc/sys) that keeps user namespaces from users, with the command that lifts it, or how
 * to find out more when none of them does. root: the caller is root, to whom two of the settings do not apply. Any thread. */
void userns_remedy(char *out, size_t size, const char *sysctl_dir, bool root);
