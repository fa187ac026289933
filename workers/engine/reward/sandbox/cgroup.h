/* cgroup.h - one memory limit for everything in a sandbox, enforced by the kernel (cgroup v2)
 *
 * Works where this process may make groups with a memory limit: in a cgroup where the memory controller is (or can be)
 * enabled for children, either this process's own or one above it, as far up as they are writable. systemd provides one
 * with Delegate=yes and DelegateSubgroup=. Everything counts: pages shared or not, mapped or not, files in /tmp, the
 * buffers of pipes and sockets, page tables.
 *
 * A set of groups belongs to one sandbox_host and its thread. The groups are reused, since making one costs the kernel
 * more than the rest of a sandbox. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/base/error.h"
struct cgroup_set;
/* Find a place for groups of at most mem_bytes each. mount: where cgroup v2 is mounted; own: this process's group, as in
 * /proc/self/cgroup. NULL with ERR_UNSUPPORTED: err says what is missing. */
struct cgroup_set *cgroup_set_new(const char *mount, const char *own, int64_t mem_bytes, struct error *err);
/* As cgroup_set_new, for this process's own mount and group. */
struct cgroup_set *cgroup_set_here(int64_t mem_bytes, struct error *err);
/* Remove the groups, waiting a little for the last processes to end. NULL is fine. */
void cgroup_set_free(struct cgroup_set *set);
/* Put process pid, and so what it starts from now on, into an empty group. Returns its number, for the functions below; -1: see
 * err. */
int cgroup_take(struct cgroup_set *set, pid_t pid, struct error *err);
/* Has the kernel killed processes of the group for lack of memory since cgroup_take? */
bool cgroup_is_over(const struct cgroup_set *set, int group);
/* The group is reused once all its processes have ended; the caller has killed them. */
void cgroup_give(struct cgroup_set *set, int group);
