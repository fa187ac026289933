#include "protocol/wire/run_door.h"
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/wire/join_token.h"
#include "protocol/wire/run_head.h"

#define GROUPS_MAX 1024
#define REACH_MS 5000

void run_door_close(struct run_door *d)
{
    transport_free(d->transport);
    *d = (struct run_door){ 0 };
}

/* Through the gate of a head on another machine. */
static bool far_open(struct run_door *d, const char *run_dir, struct error *err)
{
    char path[PATH_MAX], token[JOIN_TOKEN_LEN + 1];
    struct run_head head;
    struct join_identity id;
    const char *address = NULL;
    if (!run_head_read(&head, run_dir, err) || !path_join(path, sizeof path, run_dir, "sock/join") || !join_token_read(token, path, err)
        || !join_identity_make(&id, token, NULL, err) || !(address = run_head_reach(&head, REACH_MS, err)))
        return false;
    d->far = true;
    return path_join(path, sizeof path, run_dir, "sock") && (d->transport = transport_new(path, false, err))
           && (d->agent = peer_new_tls(d->transport, address, &id, err));
}

bool run_door_open(struct run_door *d, const char *run_dir, bool read_only, struct error *err)
{
    struct stat st;
    char path[PATH_MAX];
    *d = (struct run_door){ 0 };
    if (run_head_is_elsewhere(run_dir)) {
        if (far_open(d, run_dir, err))
            return true;
        run_door_close(d);
        return false;
    }
    if (!path_join(path, sizeof path, run_dir, "sock"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    d->read_only = read_only || (stat(path, &st) == 0 && st.st_uid != geteuid());
    if (d->read_only && !path_join(path, sizeof path, run_dir, VIEW_FOLDER))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    d->transport = d->read_only ? transport_new_view(path, err) : transport_new(path, false, err);
    if (d->transport && (d->agent = peer_new(d->transport, d->read_only ? "view" : "agent", err)))
        return true;
    run_door_close(d);
    return false;
}

bool run_door_may_look(const char *run_dir, struct error *err)
{
    struct stat st;
    char sock[PATH_MAX], view[PATH_MAX];
    if (!path_join(sock, sizeof sock, run_dir, "sock") || !path_join(view, sizeof view, run_dir, VIEW_FOLDER))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    if (stat(sock, &st) != 0 || access(sock, X_OK) == 0 || access(view, X_OK) == 0)
        return true;
    return error_set(err, ERR_REFUSED, "the run '%s' is another user's, who has not let you look at it (setting view_group)", run_dir);
}

struct subscriber *run_door_listen(struct run_door *d, struct error *err)
{
    if (d->far) {
        error_set(err, ERR_UNSUPPORTED, "a run on another machine has no telemetry here");
        return NULL;
    }
    return subscriber_new(d->transport, d->read_only ? "view-telemetry" : "telemetry", err);
}

bool run_view_group_check(const char *group, struct error *err)
{
    gid_t mine[GROUPS_MAX];
    const struct group *g = getgrnam(group);
    if (!g)
        return error_set(err, ERR_USAGE, "view_group: there is no group '%s' on this host", group);
    int n = getgroups(GROUPS_MAX, mine);
    bool ok = geteuid() == 0 || getegid() == g->gr_gid;
    for (int i = 0; i < n && !ok; i++)
        ok = mine[i] == g->gr_gid;
    return ok || error_set(err, ERR_USAGE, "view_group: you are not a member of the group '%s', so you cannot give it access", group);
}

bool run_view_make(struct transport *t, const char *run_dir, const char *group, struct error *err)
{
    char path[PATH_MAX];
    if (!path_join(path, sizeof path, run_dir, VIEW_FOLDER))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    if (!dir_make(path, 0700, err))
        return false;
    if (!group[0])
        return (chmod(path, 0700) == 0 || error_errno(err, "cannot close '%s' to others", path)) && transport_view(t, path, false, err);
    if (!run_view_group_check(group, err))
        return false;
    if (chown(path, (uid_t)-1, getgrnam(group)->gr_gid) != 0 || chmod(path, 02750) != 0)    // files made in it belong to the group
        return error_errno(err, "cannot open '%s' to the group '%s'", path, group);
    return transport_view(t, path, true, err);
}
