/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One version's structs of NVIDIA's headers, read by cupti/records.c with the lengths of cupti/layouts.c. test_cupti_versions.py compiles it for each version:
 * KERNEL, COPY, SET and PEER are the structs, NODE is a kernel's field with the node, VERSION is what cuptiGetVersion() says. It prints what differs.
 */
#include "cupti/layouts.h"
#include "cupti/records.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include <cupti_result.h>
/* after the result codes and cuda.h */
#include <cupti_activity.h>
#include <cupti_version.h>

static struct {
    KERNEL kernel;
    COPY copy;
    SET set;
    PEER peer;
} __attribute__((packed)) all;

static int n_wrong;

static void same(const char *what, uint64_t got, uint64_t want)
{
    if (got == want)
        return;
    printf("%s: %llu, NVIDIA's struct has %llu\n", what, (unsigned long long)got,
           (unsigned long long)want);
    n_wrong++;
}

#define SAME(e, field, value) same(#field " of " #value, (e)->field, (uint64_t)(value))
#define SAME_RUN(e, r, node_field)                                                                 \
    do {                                                                                           \
        SAME(e, correlation, (r).correlationId);                                                   \
        SAME(e, begin_ns, (r).start);                                                              \
        SAME(e, end_ns, (r).end);                                                                  \
        SAME(e, device, (r).deviceId);                                                             \
        SAME(e, context, (r).contextId);                                                           \
        SAME(e, stream, (r).streamId);                                                             \
        SAME(e, graph, (r).graphId);                                                               \
        SAME(e, node, (r).node_field);                                                             \
    } while (0)

/* Bytes that all differ. */
static void fill(void *record, size_t n, uint32_t kind)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)record)[i] = (uint8_t)(i + kind + 1);
    memcpy(record, &kind, sizeof kind);
}

static void compare_kernel(const struct records_event *e)
{
    const KERNEL k = all.kernel;
    const int32_t shape[] = { k.gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ };
    SAME_RUN(e, k, NODE);
    for (int i = 0; i < 3; i++) {
        same("grid", e->grid[i], (uint32_t)shape[i]);
        same("block", e->block[i], (uint32_t)shape[3 + i]);
    }
    SAME(e, static_shared, (uint32_t)k.staticSharedMemory);
    SAME(e, dynamic_shared, (uint32_t)k.dynamicSharedMemory);
    SAME(e, registers, k.registersPerThread);
    same("name", (uintptr_t)e->name, (uintptr_t)k.name);
}

#define COMPARE_COPY(type, from)                                                                   \
    do {                                                                                           \
        const type r = from;                                                                       \
        SAME_RUN(e, r, graphNodeId);                                                               \
        SAME(e, bytes, r.bytes);                                                                   \
    } while (0)

static void compare(void *ctx, const struct records_event *e)
{
    static int n;
    (void)ctx;
    switch (n++) {
    case 0: compare_kernel(e); break;
    case 1: COMPARE_COPY(COPY, all.copy); break;
    case 2: COMPARE_COPY(SET, all.set); break;
    default: COMPARE_COPY(PEER, all.peer);
    }
    if (e->kind == LAYOUTS_COPY)
        same("how", e->how, all.copy.copyKind);
    if (e->kind == LAYOUTS_COPY_PEER)
        same("how", e->how, all.peer.copyKind);
}

/* Each record where NVIDIA's struct before it ends. */
static int next(uint8_t *buffer, size_t n, uint8_t **record)
{
    static size_t at[] = { 0, sizeof(KERNEL), sizeof(KERNEL) + sizeof(COPY),
                           sizeof(KERNEL) + sizeof(COPY) + sizeof(SET) };
    static unsigned i;
    (void)n;
    if (i == sizeof at / sizeof *at)
        return RECORDS_END;
    *record = buffer + at[i++];
    return 0;
}

int main(void)
{
    struct records_walk walk = { 0 };
    fill(&all.kernel, sizeof all.kernel, LAYOUTS_KERNEL);
    fill(&all.copy, sizeof all.copy, LAYOUTS_COPY);
    fill(&all.set, sizeof all.set, LAYOUTS_SET);
    fill(&all.peer, sizeof all.peer, LAYOUTS_COPY_PEER);
    records_walk(next, VERSION, (uint8_t *)&all, sizeof all, &walk, compare, NULL);
    same("records", walk.n, 4);
    same("records of a length that the table does not say", walk.n_strange, 0);
    same("records that are not read, or have no times", walk.n_unread + walk.n_no_time, 0);
    same("bytes of a kernel", layouts_bytes(VERSION, LAYOUTS_KERNEL), sizeof(KERNEL));
    same("bytes of a copy", layouts_bytes(VERSION, LAYOUTS_COPY), sizeof(COPY));
    same("bytes of a fill", layouts_bytes(VERSION, LAYOUTS_SET), sizeof(SET));
    same("bytes of a copy between devices", layouts_bytes(VERSION, LAYOUTS_COPY_PEER),
         sizeof(PEER));
    printf("%u\n", (unsigned)VERSION);
    return n_wrong ? 1 : 0;
}
