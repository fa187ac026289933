#include "workers/engine/reward/sandbox/userns.h"
#include <stdio.h>
#include <stdlib.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"

static const struct setting {
    const char *file;
    long bad;    // the value that forbids user namespaces
    bool spares_root;
    const char *remedy;
} settings[] = {
    /* Ubuntu from 23.10 on (https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces) */
    { "kernel/apparmor_restrict_unprivileged_userns", 1, true,
      "AppArmor lets no program make them that has no profile for it: printf 'abi <abi/4.0>,\\nprofile bwrap /usr/bin/bwrap "
      "flags=(unconfined) { userns, }\\n' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap; or, for "
      "all programs of this host, sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0" },
    /* Debian's kernels */
    { "kernel/unprivileged_userns_clone", 0, true, "only root may make them: sudo sysctl kernel.unprivileged_userns_clone=1" },
    { "user/max_user_namespaces", 0, false, "this host allows none: sudo sysctl user.max_user_namespaces=15000" },
};

static bool forbids(const struct setting *s, const char *sysctl_dir)
{
    char path[4096], text[32] = "", *end;
    if (!path_join(path, sizeof path, sysctl_dir, s->file))
        return false;
    FILE *f = fopen(path, "re");    // absent where the kernel does not have it
    bool read = f && fgets(text, sizeof text, f);
    if (f)
        fclose(f);
    long value = strtol(text, &end, 10);
    return read && end != text && value == s->bad;
}

void userns_remedy(char *out, size_t size, const char *sysctl_dir, bool root)
{
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        if (!(root && settings[i].spares_root) && forbids(&settings[i], sysctl_dir)) {
            snprintf(out, size, "%s", settings[i].remedy);
            return;
        }
    snprintf(out, size,
             "no setting of this host forbids them; see what 'bwrap --unshare-all --ro-bind / / true' says, and in a container "
             "whether it was started with seccomp=unconfined and apparmor=unconfined");
}
