/* nng_start.h - start nng only where it can start
 *
 * nng 1.5.2 starts its threads at the first socket. When one of them cannot be started, it reports a failure, and at the next call it
 * waits without end or follows a null pointer. So before the first socket as many threads as it needs are started and ended, and
 * descriptors opened and closed. If that fails, nng is left alone, and the process can say why. What others of the same user take in
 * between may still be missing: so nng is started on a thread of its own, which is waited for with a limit. */
#pragma once
#include "protocol/base/error.h"

/* To be called before anything else of nng, as often as one likes. Any thread. On failure nothing of nng may be called. */
MUST_USE bool nng_start(struct error *err);
