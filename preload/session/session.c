/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/session/session_private.h"

#include "core/atomic.h"

#include <errno.h>

struct session session = SESSION_INIT;

__thread __attribute__((tls_model("initial-exec"))) struct session_thread session_thread;

/* ------------------------------------------------------------------------- entering it */

bool session_enter(struct session_call *call)
{
    return session_enter_for(call, SESSION_FOLLOWS);
}

bool session_enter_for(struct session_call *call, uint32_t what)
{
    call->saved_errno = errno;
    call->outer = session_thread.open;
    /*
     * Read by lifecycle_finish() after it disarmed: either it sees us and waits, or we see that it did. Both sides
     * need the full order of the read-modify-write.
     */
    __atomic_fetch_add(&session.active, 1, __ATOMIC_SEQ_CST);
    uint32_t armed = __atomic_load_n(&session.armed, __ATOMIC_SEQ_CST);
    session_thread.open = call->outer || armed;
    return armed & what;
}

void session_pause(const struct session_call *call)
{
    errno = call->saved_errno;
}

void session_resume(struct session_call *call)
{
    call->saved_errno = errno;
}

void session_leave(const struct session_call *call)
{
    session_thread.open = call->outer;
    session_thread.kernel = NULL;
    __atomic_fetch_sub(&session.active, 1, __ATOMIC_SEQ_CST);
    errno = call->saved_errno;
}

void session_attach(void)
{
    session_thread.open = true;
}

/* ------------------------------------------------------------------------- accounting */

void session_count(struct dmi_tally *tally, int sign, uint64_t records, uint64_t rows,
                   uint64_t bytes)
{
    uint64_t s = (uint64_t)(int64_t)sign; /* unsigned arithmetic wraps as the counters do */
    atomic_add_relaxed(&tally->records, s * records);
    atomic_add_relaxed(&tally->rows, s * rows);
    atomic_add_relaxed(&tally->bytes, s * bytes);
}

void session_drop(uint32_t site, enum dmi_drop reason, uint64_t rows, uint64_t bytes)
{
    session_count(&session_counters(site)->dropped[reason], 1, 1, rows, bytes);
}
