/* SPDX-License-Identifier: Apache-2.0 */
/* What a free costs an engine that frees in every step, with a thousand small kernels in flight as copies are. */
#include "facts.h"

#include <stdio.h>

#define COPIES 1000
#define STEPS  20
#define BYTES  (1u << 20)

struct subject {
    CUstream stream;
    CUfunction idle;
    CUdeviceptr word;
};

/* Of one kind: memory is taken before the launches and given back after them. */
struct kind {
    const char *name;
    CUresult (*take)(struct subject *s, CUdeviceptr *p);
    CUresult (*give)(struct subject *s, CUdeviceptr p);
};

static CUresult take_plain(struct subject *s, CUdeviceptr *p)
{
    (void)s;
    return CU(cuMemAlloc_v2, p, BYTES);
}

static CUresult give_plain(struct subject *s, CUdeviceptr p)
{
    (void)s;
    return CU(cuMemFree_v2, p);
}

static CUresult take_pooled(struct subject *s, CUdeviceptr *p)
{
    return CU(cuMemAllocAsync, p, BYTES, s->stream);
}

static CUresult give_pooled(struct subject *s, CUdeviceptr p)
{
    return CU(cuMemFreeAsync, p, s->stream);
}

static CUresult take_mapped(struct subject *s, CUdeviceptr *p)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                               .id = driver.device } };
    CUmemAccessDesc access = { .location = prop.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle;
    size_t n = 0;

    (void)s;
    PASS(CU(cuMemGetAllocationGranularity, &n, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    PASS(CU(cuMemAddressReserve, p, n, 0, 0, 0));
    PASS(CU(cuMemCreate, &handle, n, &prop, 0));
    PASS(CU(cuMemMap, *p, n, 0, handle, 0));
    PASS(CU(cuMemRelease, handle));
    return CU(cuMemSetAccess, *p, n, &access, 1);
}

static CUresult give_mapped(struct subject *s, CUdeviceptr p)
{
    CUdeviceptr base;
    size_t n = 0;

    (void)s;
    PASS(CU(cuMemGetAddressRange_v2, &base, &n, p));
    return CU(cuMemUnmap, p, n);
}

static CUresult step(struct subject *s, const struct kind *kind, unsigned copies, double *call_us,
                     double *done_us)
{
    uint32_t value = 1;
    void *params[] = { &s->word, &value };
    CUdeviceptr p;

    PASS(kind->take(s, &p));
    PASS(CU(cuStreamSynchronize, s->stream));
    for (unsigned i = 0; i < copies; i++)
        PASS(launch(s->idle, 1, 1, s->stream, params));
    uint64_t start = now_ns();
    PASS(kind->give(s, p));
    *call_us = (double)(now_ns() - start) / 1000;
    PASS(CU(cuStreamSynchronize, s->stream));
    *done_us = (double)(now_ns() - start) / 1000;
    return CUDA_SUCCESS;
}

static CUresult time_frees(struct subject *s, const struct kind *kind, unsigned copies)
{
    double calls[STEPS], done[STEPS];
    unsigned n = rounds(STEPS);
    char what[96];

    for (unsigned i = 0; i < n; i++)
        PASS(step(s, kind, copies, &calls[i], &done[i]));
    snprintf(what, sizeof what, "%s after %u kernels: the call", kind->name, copies);
    figure(what, median(calls, n), "us");
    snprintf(what, sizeof what, "%s after %u kernels: until the stream is done", kind->name,
             copies);
    figure(what, median(done, n), "us");
    return CUDA_SUCCESS;
}

void ask_frees_behind_copies(void)
{
    static const struct kind kinds[] = {
        { "cuMemFree", take_plain, give_plain },
        { "cuMemFreeAsync", take_pooled, give_pooled },
        { "cuMemUnmap", take_mapped, give_mapped },
    };
    struct subject s;

    TRY(new_stream(&s.stream));
    TRY(kernel(&s.idle, "poke"));
    TRY(device_memory(&s.word, 64));
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        TRY(time_frees(&s, &kinds[i], 0));
        TRY(time_frees(&s, &kinds[i], rounds(COPIES)));
    }
}
