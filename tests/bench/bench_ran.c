/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a record takes of the collector's thread, and a step of the disk, in the tiers full and kernels: bench_ran [STEPS]. Steps of 1,600 kernels
 * with 40 names, in graphs, are walked, dealt to their steps, summed, and stored or kept in the ring; walker and buffers are those of the test.
 */
#include "cupti/layouts.h"
#include "cupti/records.h"
#include "preload/session/session.h"
#include "preload/trace/join.h"
#include "preload/trace/ran_chunks.h"
#include "preload/trace/recent.h"
#include "preload/trace/sums.h"
#include "tests/bench/bench.h"

#include <dmi/format.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 1600, NAMES = 40, BYTES = 216, KEPT = 100 /* one step of so many */ };

static uint8_t buffer[KERNELS * BYTES];
static char names[NAMES][96];
static struct join *join;
static struct own_clock own; /* a pair each step */
static struct ran_chunks records = { .type = DMI_CHUNK_TRACE };
static struct ran_chunks summed = { .type = DMI_CHUNK_SUMS };
static struct trace_sums sums;
static struct recent recent;
static uint64_t n_bytes;

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

/* ------------------------------------------------------------------------- in the place of the session and its run */

struct session session;

int run_append_meta(struct run *run, uint16_t type, struct text *meta)
{
    (void)run, (void)type;
    n_bytes += meta->n;
    text_deinit(meta);
    return 0;
}

bool session_write_failed(int error)
{
    (void)error;
    return false;
}

/* ------------------------------------------------------------------------- the tiers */

static void take_full(const struct records_event *e, uint64_t step)
{
    sums_take(&sums, e, step);
    ran_chunks_record(&records, e, step, (struct ran_place){ 0 });
}

static void take_kernels(const struct records_event *e, uint64_t step)
{
    sums_take(&sums, e, step);
    if (step >= DMI_RAN_FIRST)
        recent_add(&recent, e, step - DMI_RAN_FIRST);
}

static void keep(void *ctx, const struct records_event *e, uint64_t number)
{
    (void)ctx;
    ran_chunks_record(&records, e, DMI_RAN_FIRST + number, (struct ran_place){ 0 });
}

/* A step a round; each takes 12.5 ms, and what waits is written once a second. */
static void end_round(uint64_t i, bool kernels)
{
    sums_round(&sums, false, false, kernels ? &summed : NULL);
    if (i % 80 == 79) {
        ran_chunks_write(&records);
        ran_chunks_write(&summed);
    }
}

static bool is_perhaps(uint32_t graph)
{
    (void)graph;
    return false;
}

static struct placed place(struct records_event *e)
{
    return own_clock_place(&own, e->begin_ns, e->end_ns);
}

static uint64_t step_ns(uint64_t i, uint64_t n, const struct join_calls *calls, bool kernels)
{
    static struct records_walk walk;
    const struct join_run run = { .deal = i + 1,
                                  .context = 1,
                                  .stream = 7,
                                  .graphs = 1,
                                  .first = JOIN_GRAPH,
                                  .last = JOIN_GRAPH,
                                  .in_step = true };
    fill(i);
    const uint64_t after_ns = (i + 1) * KERNELS * 7800;
    const struct clock_pair now = { 1700000000000000000 + after_ns, after_ns + 1, 100 };
    own_clock_take(&own, &now);
    uint64_t begin = bench_thread_ns();
    join_add_run(join, &run);
    join_step(join, i + 1, i);
    records_walk(next, 130001, buffer, sizeof buffer, &walk, add, NULL);
    join_deal(join, calls, UINT64_MAX / 2, i + 1 == n);
    end_round(i, kernels);
    return bench_thread_ns() - begin;
}

static void finish(uint64_t n, bool kernels)
{
    if (kernels)
        recent_store(&recent, n - n / KEPT, n, keep, NULL);
    sums_round(&sums, true, true, kernels ? &summed : NULL);
    ran_chunks_write(&records);
    ran_chunks_write(&summed);
}

/* Return: bytes of the disk. */
static uint64_t measure(const char *tier, uint64_t n, bool kernels)
{
    const struct join_calls calls = { .open = open_of,
                                      .is_perhaps = is_perhaps,
                                      .place = place,
                                      .take = kernels ? take_kernels : take_full };
    uint64_t ns = 0;
    join = join_new();
    n_bytes = 0;
    for (uint64_t i = 0; i < n; i++)
        ns += step_ns(i, n, &calls, kernels);
    finish(n, kernels);
    printf("%-8s a record, from buffer to %-6s %6.1f ns of the collector's thread\n", tier,
           kernels ? "ring" : "chunk", (double)ns / (double)(n * KERNELS));
    printf("%-8s a step, on the disk              %8.1f bytes%s\n", tier,
           (double)n_bytes / (double)n, kernels ? ", one in a hundred kept" : "");
    uint64_t seen = sums.all.n_records + sums.no_memory;
    join_free(join);
    sums_deinit(&sums);
    return seen == n * KERNELS ? n_bytes : 0;
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 300;
    for (int i = 0; i < NAMES; i++)
        snprintf(names[i], sizeof names[i], "_ZN7kernels4gemm%02d%065d", i, 0);
    if (recent_init(&recent, 64u << 20))
        bench_die("recent_init", 0);
    uint64_t full = measure("full", n, false), few = measure("kernels", n, true);
    printf("kernels: of the bytes of full        %6.2f%%\n", 100 * (double)few / (double)full);
    ran_chunks_deinit(&records);
    ran_chunks_deinit(&summed);
    recent_deinit(&recent);
    return full && few ? 0 : 1;
}
