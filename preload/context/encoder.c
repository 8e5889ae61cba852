/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/encoder.h"

#include "core/atomic.h"
#include "core/log.h"
#include "preload/base/session.h"
#include "preload/context/staging.h"

#include <string.h>

static void count_batch(const struct batch *b, int written)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct run_record *r = &b->records[i];
        if (written == 0)
            session_count(&session_counters(r->site)->captured, 1, 1, r->dims[0], r->n_bytes);
        else
            session_drop(r->site, DMI_DROP_WRITE_FAILED, r->dims[0], r->n_bytes);
    }
}

/* Steps and what came of them are written even where no record comes: their end comes after the last one. */
#define COMMIT_NS 1000000000u

static struct batch *next_batch(struct staging *staging)
{
    while (!staging_wait_full(staging, COMMIT_NS))
        run_commit(session.run); /* fails as the next append will, which says so */
    return staging_take_full(staging);
}

void *encoder_main(void *arg)
{
    struct context *c = arg;
    struct batch *b;
    session_attach();
    while ((b = next_batch(c->staging))) {
        int r = b->n ? run_append(session.run, b->records, b->n) : 0;
        if (r && session_write_failed(-r)) {
            log_line("records are dropped, the segment cannot be written: %s", strerror(-r));
            run_problem(session.run, NULL, "write_failed", strerror(-r));
        }
        count_batch(b, r);
        atomic_store_release(&c->settled, b->end_slot); /* to drain_wait() */
        staging_give_idle(c->staging, b);
    }
    return NULL;
}
