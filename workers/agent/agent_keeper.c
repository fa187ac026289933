/* The keeper: starts the agent, and restarts it whenever it has died before its work was done. */
#include "workers/agent/agent_parts.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/spawn.h"

static volatile sig_atomic_t signalled;    // a signal handler has no argument to carry state

static void on_signal(UNUSED int sig)
{
    signalled = 1;
}

bool keeper_run(const char *run_dir, struct error *err)
{
    char ended[4200], text[1024], last[512], how[64] = "ended";
    struct error none;
    int n_quick = 0, status;
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    snprintf(ended, sizeof ended, "%s/sock/ended", run_dir);
    if (!process_note(run_dir, "keeper", err))
        return false;
    hold_point("starting");
    for (;;) {
        int64_t started = clock_ms();
        pid_t pid = process_find(run_dir, "agent");
        if (pid <= 0 && path_exists(ended))
            return true;
        if (pid <= 0 && (pid = process_spawn("agent", run_dir, "agent", RUN_LOCK_FD, false, err)) < 0) {
            if (!run_failure_write(run_dir, err->text, &none))
                log_error("%s", none.text);
            return false;
        }
        int fd = pidfd_of(pid);
        while (fd >= 0) {
            struct pollfd p = { .fd = fd, .events = POLLIN };
            int n = poll(&p, 1, 1000);
            if (signalled) {
                signalled = 0;
                kill(pid, SIGTERM);
            }
            if (n > 0)
                break;
        }
        if (fd >= 0)
            close(fd);
        for (pid_t gone; (gone = waitpid(-1, &status, WNOHANG)) > 0;)
            if (gone == pid)
                process_end_words(status, how, sizeof how);
        if (path_exists(ended))
            return true;
        n_quick = clock_ms() - started < QUICK_MS ? n_quick + 1 : 0;
        log_warn("the agent has ended before its work was done");
        if (n_quick >= 10) {
            log_last_line(run_dir, "agent", last, sizeof last);
            snprintf(text, sizeof text, "the agent cannot run; it was started %d times: %.600s", n_quick, last[0] ? last : how);
            return run_failure_write(run_dir, text, err) && error_set(err, ERR_INTERNAL, "%s", text);
        }
        if (n_quick > 1)
            poll(NULL, 0, 100 * n_quick);
    }
}
