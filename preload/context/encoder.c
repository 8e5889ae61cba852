/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/encoder.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/priority.h"
#include "preload/context/gauge.h"
#include "preload/context/staging.h"
#include "preload/session/session.h"

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
    struct batch *b;
    bool ended = false;
    while (!(b = staging_take_full(staging, COMMIT_NS, &ended)) && !ended)
        run_commit(session.run); /* fails as the next append will, which says so */
    return b;
}

static void encode(struct context *c, struct batch *b)
{
    uint64_t start = clock_mono_ns();
    b->rung = session.rung ? (enum codec_rung)(session.rung - 1) : ladder_rung(&c->ladder);
    b->failure = b->n ? run_encode(session.run, b->records, b->n, b->rung, &b->chunk) : 0;
    b->encode_ns = clock_mono_ns() - start;
}

static uint64_t raw_bytes(const struct batch *b)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < b->n; i++)
        n += b->records[i].n_bytes;
    return n;
}

/* Which rung the next ones take. */
static void note(struct context *c, const struct batch *b, uint64_t append_ns)
{
    struct ladder_batch seen = {
        .rung = b->rung,
        .n_bytes = raw_bytes(b),
        .encode_ns = b->encode_ns,
        .append_ns = append_ns,
        .since_ns = b->full_ns - c->last_full_ns,
        .waited = b->waited && b->pressed,
    };
    c->last_full_ns = b->full_ns;
    ladder_note(&c->ladder, &seen, c->n_encoders);
}

/* In its turn. */
static void append(struct context *c, struct batch *b)
{
    int r = b->failure;
    uint64_t start = clock_mono_ns();
    if (b->chunk)
        r = run_append_chunk(session.run, b->chunk);
    b->chunk = NULL;
    note(c, b, clock_mono_ns() - start);
    if (r && session_write_failed(-r)) {
        log_line("records are dropped, the segment cannot be written: %s", strerror(-r));
        run_problem(session.run, NULL, "write_failed", strerror(-r));
    }
    count_batch(b, r);
    atomic_store_release(&c->settled, b->end_slot); /* to workers_wait() */
    gauge_ended(c, b);
}

void *encoder_main(void *arg)
{
    struct context *c = arg;
    struct batch *b;
    pthread_setname_np(pthread_self(), "dmi-encode");
    session_attach();
    priority_lower();
    while ((b = next_batch(c->staging))) {
        encode(c, b);
        staging_give_encoded(c->staging, b);
        while ((b = staging_take_turn(c->staging))) {
            append(c, b);
            staging_end_turn(c->staging, b);
        }
    }
    return NULL;
}
