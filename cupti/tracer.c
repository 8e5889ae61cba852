/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/tracer.h"

#include "core/atomic.h"
#include "cupti/layouts.h"
#include "cupti/library.h"
#include "cupti/pool.h"

#include <errno.h>
#include <stddef.h>

#define FORCED         1u           /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
#define DEVICE_BYTES   0            /* CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE */
#define DEVICE_BUFFERS 2            /* CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT */
#define MOST_DEVICE    (256u << 20) /* bytes of device memory a context for records */

/* Kinds that are asked for. */
static const int kinds[] = { LAYOUTS_KERNEL, LAYOUTS_COPY, LAYOUTS_SET, LAYOUTS_COPY_PEER };
#define N_KINDS (sizeof kinds / sizeof *kinds)

static struct {
    struct library library;
    uint32_t version;
    int state; /* enum state; atomic */
    struct tracer_counts counts;
} tracer;

enum state { TRACER_NEW = 0, TRACER_RUNS = 1, TRACER_OVER = 2 };

/* ------------------------------------------------------------------------- CUPTI's threads */

static void request(uint8_t **buffer, size_t *n_bytes, size_t *most_records)
{
    *buffer = pool_take(n_bytes);
    *most_records = 0; /* as many as it holds */
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes,
                     size_t n_valid)
{
    (void)context, (void)stream;
    if (n_bytes) /* none: the reserve, given again, which its first owner still writes */
        pool_fill(buffer, n_valid < n_bytes ? n_valid : n_bytes);
}

/* ------------------------------------------------------------------------- start */

/*
 * Bounds what CUPTI allocates of device memory in a context: a version that refuses the attribute keeps its own bound. Counts only before contexts are there.
 */
static void bound_device_memory(void)
{
    size_t n = sizeof(size_t), bytes = 0;
    if (!tracer.library.set_attribute)
        return;
    bytes = 4u << 20;
    tracer.library.set_attribute(DEVICE_BYTES, &n, &bytes);
    size_t limit = MOST_DEVICE / bytes;
    tracer.library.set_attribute(DEVICE_BUFFERS, &n, &limit);
}

/* Kernels are needed, the others are not. */
static int enable(void)
{
    int r = tracer.library.enable(kinds[0]);
    for (size_t i = 1; !r && i < N_KINDS; i++)
        tracer.library.enable(kinds[i]);
    return r;
}

static int ask(struct err *err)
{
    struct library *l = &tracer.library;
    int r = l->get_version(&tracer.version);
    if (r)
        return err_set(err, -ENOTSUP, "%s does not say its version (error %d)", l->path, r);
    if (tracer.version < LAYOUTS_FIRST)
        return err_set(err, -ENOTSUP, "%s is older than CUDA 11.8", l->path);
    bound_device_memory();
    r = l->register_callbacks(request, complete);
    r = r ? r : enable();
    if (r == LIBRARY_TAKEN)
        return err_set(err, -EBUSY, "another profiler has CUPTI (error %d)", r);
    return r ? err_set(err, -ENOTSUP, "%s records no kernels here (error %d)", l->path, r) : 0;
}

int tracer_start(struct err *err, const char *path, int major)
{
    if (atomic_load_relaxed(&tracer.state) != TRACER_NEW)
        return err_set(err, -EBUSY, "it was started before");
    int r = library_find(err, &tracer.library, path, major);
    r = r ? r : ask(err);
    atomic_store_release(&tracer.state, r ? TRACER_OVER : TRACER_RUNS); /* to tracer_runs() */
    return r;
}

bool tracer_runs(void)
{
    return atomic_load_acquire(&tracer.state) == TRACER_RUNS; /* of tracer_start() */
}

const char *tracer_path(void)
{
    return tracer.library.path;
}

bool tracer_knows_layouts(void)
{
    return layouts_bytes(tracer.version, LAYOUTS_KERNEL);
}

bool tracer_stream_ids(void *context, void *stream, bool per_thread, uint32_t *context_id,
                       uint32_t *stream_id)
{
    const struct library *l = &tracer.library;
    return tracer_runs() && !l->get_context_id(context, context_id) &&
           !l->get_stream_id(context, stream, per_thread, stream_id);
}

/* ------------------------------------------------------------------------- records */

void tracer_flush(bool forced)
{
    if (tracer_runs())
        tracer.library.flush_all(forced ? FORCED : 0);
}

void tracer_take(void (*fn)(void *ctx, const struct records_event *event), void *ctx)
{
    struct pool_full full;
    size_t dropped = 0;
    while (pool_next(&full)) {
        records_walk(tracer.library.next_record, tracer.version, full.buffer, full.n_valid,
                     &tracer.counts.walk, fn, ctx);
        pool_give(full.buffer);
    }
    if (tracer_runs() && tracer.library.dropped && !tracer.library.dropped(NULL, 0, &dropped))
        tracer.counts.dropped += dropped;
}

void tracer_stop(void)
{
    if (!tracer_runs())
        return;
    for (size_t i = 0; i < N_KINDS; i++)
        tracer.library.disable(kinds[i]);
    atomic_store_release(&tracer.state, TRACER_OVER); /* to tracer_runs() */
}

struct tracer_counts tracer_counts(void)
{
    return tracer.counts;
}

void tracer_reset(void)
{
    if (tracer.state != TRACER_NEW)
        tracer.state = TRACER_OVER;
    pool_reset();
}
