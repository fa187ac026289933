#include "protocol/base/secret.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "protocol/base/macros.h"

extern char **environ;

static const char *const names[] = { "WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN" };

bool secret_env_is(const char *entry)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        size_t n = strlen(names[i]);
        if (strncmp(entry, names[i], n) == 0 && entry[n] == '=')
            return true;
    }
    return false;
}

void secret_env_hide(void)
{
    for (char **e = environ; e && *e; e++) {
        if (!secret_env_is(*e))
            continue;
        size_t size = strlen(*e) + 1;
        char *hidden = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (hidden == MAP_FAILED)
            continue;    // it stays where it was: a core file may hold it, nothing else changes
        madvise(hidden, size, MADV_DONTDUMP);
        memcpy(hidden, *e, size);
        explicit_bzero(*e, size);
        *e = hidden;    // stays for the life of the process, as the environment does
    }
}

void secret_process(void)
{
#ifndef __SANITIZE_ADDRESS__    // its leak checker attaches to the process as a debugger does; it writes no core files itself
    prctl(PR_SET_DUMPABLE, 0);
#endif
}
