/* thread.h - starting threads that take no signals, and waiting for the signals that end a command
 *
 * A signal that nobody waits for ends the process if any thread may take it. So threads take none, and what ends a command is received
 * in one place: by the handler of the first thread, or by a descriptor that is opened before any thread starts. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "protocol/base/error.h"
#ifdef __cplusplus
extern "C" {
#endif
/* As pthread_create, and the thread takes no signal but those that a fault of its own raises. Any thread. Returns 0 or an errno. */
int thread_start(pthread_t *thread, void *(*body)(void *), void *arg);
/* Block SIGTERM and SIGINT in this thread and in all that it starts, and give a descriptor that becomes readable when one of them comes.
 * To be called before anything that may start a thread, also in a library. The descriptor does not block if `poll` is given; the
 * caller closes it. -1: see err. */
int stop_fd_open(bool poll, struct error *err);
/* Wait until one of them comes. The descriptor must be one that blocks. */
void stop_fd_wait(int fd);
/* Take what has come; true: one of them has. The descriptor must be one that does not block. */
bool stop_fd_take(int fd);
#ifdef __cplusplus
}
#endif
