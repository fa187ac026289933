/* run_door.h - how an operator's tool talks to a run: through the sockets that command it, or those that only show it
 *
 * RUN/sock (mode 0700) holds `agent` and `telemetry`, for the run's owner. RUN/view holds `view` and `view-telemetry`, which answer
 * questions and refuse everything else; with view_group its members may enter (mode 2750). A user who is not the owner gets the
 * view. A run whose head is another machine (run_head.h) is reached through its gate, over TLS with the token RUN/sock/join. */
#pragma once
#include "protocol/wire/transport.h"
#define VIEW_FOLDER "view"
struct run_door {
    struct transport *transport;    // NULL: not open
    bool read_only;
    bool far;    // to another machine: there is no telemetry, only answers
    struct peer *agent;
};
/* read_only: use the view even as the owner. On failure d holds nothing. */
MUST_USE bool run_door_open(struct run_door *d, const char *run_dir, bool read_only, struct error *err);
void run_door_close(struct run_door *d);
/* May we know anything about this run? Not when it belongs to a user who has not let us look; then not even whether it is alive. */
MUST_USE bool run_door_may_look(const char *run_dir, struct error *err);
/* To telemetry; NULL: see err (ERR_UNSUPPORTED: the run is far). */
struct subscriber *run_door_listen(struct run_door *d, struct error *err);
/* For the agent, before it opens its sockets: make RUN/view and tell t to put sockets with these names there. group "": only us. */
MUST_USE bool run_view_make(struct transport *t, const char *run_dir, const char *group, struct error *err);
/* May we give access to this group? The error names it when not. */
MUST_USE bool run_view_group_check(const char *group, struct error *err);
