/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a record of the tier full takes of the collector's thread, and of the disk: bench_ran [STEPS]. Steps of 1,600 kernels with 40 names, in
 * graphs, are walked, dealt to their steps and stored; walker and buffers are those of the test.
 */
#include "cupti/layouts.h"
#include "cupti/records.h"
#include "preload/trace/join.h"
#include "storage/ran.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 1600, NAMES = 40, BYTES = 216 };

static uint8_t buffer[KERNELS * BYTES];
static char names[NAMES][96];
static struct join *join;
static struct ran_writer writer;
static uint64_t n_stored, n_bytes;

static int next(uint8_t *from, size_t n, uint8_t **record)
{
    uint8_t *to = *record ? *record + BYTES : from;
    if (to >= from + n)
        return 12;
    *record = to;
    return 0;
}

static void put(uint8_t *record, size_t offset, uint64_t value, size_t n)
{
    memcpy(record + offset, &value, n);
}

static void fill(uint64_t step)
{
    for (uint64_t i = 0; i < KERNELS; i++) {
        uint8_t *r = buffer + i * BYTES;
        uint64_t at = 1700000000000000000 + (step * KERNELS + i) * 7800;
        put(r, 0, LAYOUTS_KERNEL, 4);
        put(r, 16, at, 8);
        put(r, 24, at + 6000 + i % 900, 8);
        put(r, 44, 1, 4);
        put(r, 48, 7, 4);
        put(r, 52, i % 300, 4);
        put(r, 64, 128, 4);
        put(r, 92, step + 1, 4);
        put(r, 104, (uintptr_t)names[i % NAMES], 8);
        put(r, 144, 400 + i, 8);
        put(r, 156, 3, 4);
    }
}

static void add(void *ctx, const struct records_event *e)
{
    (void)ctx;
    join_add(join, e);
}

static uint64_t open_of(uint32_t context, uint32_t stream)
{
    (void)context, (void)stream;
    return UINT64_MAX;
}

static void store(const struct records_event *e, uint64_t step)
{
    struct ran ran = { .shape = { .kind = DMI_RAN_KERNEL,
                                  .name_bytes = (uint32_t)strlen(e->name),
                                  .context = e->context,
                                  .stream = e->stream },
                       .name = e->name,
                       .begin_ns = e->begin_ns,
                       .end_ns = e->end_ns,
                       .step = step,
                       .correlation = e->correlation,
                       .graph = e->graph,
                       .node = e->node };
    memcpy(ran.shape.grid, e->grid, sizeof e->grid);
    memcpy(ran.shape.block, e->block, sizeof e->block);
    ran_add(&writer, &ran);
    n_stored += step >= DMI_RAN_FIRST;
}

static void end_chunk(void)
{
    struct text meta = { 0 };
    if (!ran_meta(&writer, &meta))
        bench_die("ran_meta", 0);
    n_bytes += meta.n;
    text_deinit(&meta);
}

int main(int argc, char **argv)
{
    static const struct join_calls calls = { .open = open_of, .take = store };
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, ns = 0;
    struct records_walk walk = { 0 };
    for (int i = 0; i < NAMES; i++)
        snprintf(names[i], sizeof names[i], "_ZN7kernels4gemm%02d%065d", i, 0);
    join = join_new();
    for (uint64_t i = 0; i < n; i++) {
        const struct join_run run = { .deal = i + 1,
                                      .context = 1,
                                      .stream = 7,
                                      .graphs = 1,
                                      .first = JOIN_GRAPH,
                                      .last = JOIN_GRAPH,
                                      .in_step = true };
        fill(i);
        uint64_t begin = bench_thread_ns();
        join_add_run(join, &run);
        join_step(join, i + 1, i);
        records_walk(next, 130001, buffer, sizeof buffer, &walk, add, NULL);
        join_deal(join, &calls, i + 1 == n);
        if (i % 16 == 15 || i + 1 == n)
            end_chunk();
        ns += bench_thread_ns() - begin;
    }
    printf("records                            %llu, of a known step %llu, strange %llu\n",
           (unsigned long long)walk.n, (unsigned long long)n_stored,
           (unsigned long long)walk.n_strange);
    printf("a record, from buffer to chunk     %6.1f ns of the collector's thread\n",
           (double)ns / (double)walk.n);
    printf("a record, in a chunk               %6.2f bytes\n", (double)n_bytes / (double)walk.n);
    join_free(join);
    ran_deinit(&writer);
    return n_stored == walk.n ? 0 : 1;
}
