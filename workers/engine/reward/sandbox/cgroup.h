/* cgroup.h - one memory limit over all that a sandbox holds, kept by the kernel (cgroup v2)
 *
 * Works where this process may make groups with a memory limit: in a cgroup below which the memory controller is (or
 * can be) given on, in this process's own one or one above it, as far up as they are writable. systemd gives such a one
 * with Delegate=yes and DelegateSubgroup=. Everything counts there: pages shared or not, mapped or not, files in /tmp,
 * the buffers of pipes and sockets, page tables.
 *
 * A set of groups belongs to one sandbox_host and its thread. The groups are used again, since making one costs the
 * kernel more than the rest of a sandbox. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/base/error.h"
struct cgroup_set;
/* Find a place for groups of at most mem_bytes each. mount: where cgroup v2 is mounted; own: this process's group, as in
 * /proc/self/cgroup. NULL with ERR_UNSUPPORTED: err says what is missing. */
struct cgroup_set *cgroup_set_new(const char *mount, const char *own, int64_t mem_bytes, struct error *err);
/* The same for where this process is. */
struct cgroup_set *cgroup_set_here(int64_t mem_bytes, struct error *err);
/* Remove the groups, waiting a little for the last processes to end. NULL is fine. */
void cgroup_set_free(struct cgroup_set *set);
/* Put process pid, and so what it starts from now on, into an empty group. Returns its number, for the others here; -1:
 * see err. */
int cgroup_take(struct cgroup_set *set, pid_t pid, struct error *err);
/* Has the kernel ended processes of the group since cgroup_take, for want of memory? */
bool cgroup_is_over(const struct cgroup_set *set, int group);
/* The group is used again once all in it have ended; the caller has killed them. */
void cgroup_give(struct cgroup_set *set, int group);
