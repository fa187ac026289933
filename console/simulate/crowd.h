/* crowd.h - a made-up run of many nodes behind real sockets, to see how a console stands up to a fleet
 *
 * One process serves the run: its head answers consoles and ctl on RUN/sock as an agent does, with the numbers of simulate.h, and an
 * agent per node reports to it over a connection of its own: a heartbeat with its processes and GPUs `rate` times per second and at
 * each change of phase, and a request for work that is held open. A pause is done when every agent has said that it waits. */
#pragma once
#include "console/simulate/simulate.h"

#define CROWD_AGENTS 2000
#define CROWD_GPUS 16
struct crowd_options {
    struct simulate_options run;    // workers is not used
    int64_t agents, gpus;           // nodes, and GPUs of each
    double rate;                    // heartbeats per second and agent
};
/* Serve the run in run_dir, which is made when missing, until stop_fd is readable or closed at its other end. ready_fd gets a byte
 * when the run can be opened. Must be the process's first use of the transport. ERR_EXISTS: the run is live already. */
MUST_USE bool crowd_serve(const struct crowd_options *o, const char *run_dir, int stop_fd, int ready_fd, struct error *err);
