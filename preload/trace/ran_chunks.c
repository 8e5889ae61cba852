/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/ran_chunks.h"

#include "core/log.h"
#include "cupti/layouts.h"
#include "preload/session/session.h"

#include <string.h>

#define MOST_BYTES 262144u /* of a chunk */

static uint32_t kind_of(uint32_t kind)
{
    switch (kind) {
    case 0: return DMI_RAN_FURTHER;
    case LAYOUTS_KERNEL: return DMI_RAN_KERNEL;
    case LAYOUTS_SET: return DMI_RAN_FILL;
    default: return DMI_RAN_COPY;
    }
}

void ran_chunks_record(struct ran_chunks *c, const struct records_event *e, uint64_t step,
                       struct ran_place place)
{
    const char *name = e->kind == LAYOUTS_KERNEL && e->name ? e->name : "";
    struct ran ran = { .shape = { .kind = kind_of(e->kind),
                                  .name_bytes = (uint32_t)strlen(name),
                                  .device = e->device,
                                  .context = e->context,
                                  .stream = e->stream,
                                  .static_shared = e->static_shared,
                                  .dynamic_shared = e->dynamic_shared,
                                  .registers = e->registers,
                                  .how = e->how },
                       .name = name,
                       .begin_ns = e->begin_ns,
                       .end_ns = e->end_ns,
                       .step = step,
                       .correlation = e->correlation,
                       .graph = e->graph,
                       .node = e->node,
                       .bytes = e->bytes,
                       .place = place };
    memcpy(ran.shape.grid, e->grid, sizeof e->grid);
    memcpy(ran.shape.block, e->block, sizeof e->block);
    ran_add(&c->writer, &ran);
    c->waiting++;
    if (ran_bytes(&c->writer) >= MOST_BYTES)
        ran_chunks_write(c);
}

/* Return: when the first record began. */
static uint64_t add_busy(struct ran_chunks *c, struct aggregate *sums, uint64_t step)
{
    struct aggregate_busy busy = aggregate_busy(sums);
    const struct ran_sum all = { .shape.kind = DMI_RAN_BUSY,
                                 .name = "",
                                 .begin_ns = busy.begin_ns,
                                 .step = step,
                                 .n = sums->n_records,
                                 .sum_ns = busy.busy_ns,
                                 .most_ns = busy.longest_ns,
                                 .bytes = busy.end_ns - busy.begin_ns };
    ran_add_sum(&c->writer, &all);
    return busy.begin_ns;
}

static void add_sum(struct ran_chunks *c, const struct aggregate_sum *s, uint64_t begin_ns,
                    uint64_t step)
{
    const char *name = s->name ? s->name : "";
    const struct ran_sum sum = { .shape = { .kind = kind_of(s->kind),
                                            .name_bytes = (uint32_t)strlen(name),
                                            .device = s->device,
                                            .static_shared = s->static_shared,
                                            .dynamic_shared = s->dynamic_shared,
                                            .registers = s->registers,
                                            .how = s->how },
                                 .name = name,
                                 .begin_ns = begin_ns,
                                 .step = step,
                                 .n = s->n,
                                 .sum_ns = s->sum_ns,
                                 .most_ns = s->most_ns,
                                 .bytes = s->bytes };
    ran_add_sum(&c->writer, &sum);
}

void ran_chunks_sums(struct ran_chunks *c, struct aggregate *sums, uint64_t step, size_t most)
{
    uint64_t begin_ns = add_busy(c, sums, step);
    aggregate_fold(sums, most);
    for (size_t i = 0; i < sums->n; i++)
        add_sum(c, &sums->sums[i], begin_ns, step);
    c->waiting += sums->n_records;
    if (ran_bytes(&c->writer) >= MOST_BYTES)
        ran_chunks_write(c);
}

void ran_chunks_write(struct ran_chunks *c)
{
    struct text meta = { 0 };
    uint64_t n = c->waiting;
    if (!n)
        return;
    c->waiting = 0;
    if (!ran_meta(&c->writer, &meta)) {
        c->no_memory += n;
        return;
    }
    int r = run_append_meta(session.run, c->type, &meta);
    *(r ? &c->refused : &c->stored) += n;
    if (r && session_write_failed(-r))
        log_line("cannot write the trace: %s; what ran on the device may be lost", strerror(-r));
}

void ran_chunks_deinit(struct ran_chunks *c)
{
    ran_deinit(&c->writer);
}
