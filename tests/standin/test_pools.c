/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: what is reused when, what a pool keeps, whose memory it is. */
#include "test_standin.h"

static CUmemPoolProps on_device = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };

static CUmemoryPool new_pool(void)
{
    CUmemoryPool pool;

    ok(cuMemPoolCreate(&pool, &on_device));
    return pool;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    uint64_t value;

    ok(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void set(CUmemoryPool pool, CUmemPool_attribute which, int value)
{
    ok(cuMemPoolSetAttribute(pool, which, &value));
}

/* What is queued on @stream after it waits for let_go(). A kernel is loaded before, as that waits for what is queued. */
static void hold(CUstream stream)
{
    ok(test_launch_poke(test_zeros(4), 0, stream));
    ok(cuLaunchHostFunc(stream, test_gate, NULL));
}

static void let_go(void)
{
    __atomic_store_n(&test_gate_open, 1, __ATOMIC_SEQ_CST);
}

START_TEST(a_block_is_reused_in_stream_order)
{
    CUmemoryPool pool = new_pool();
    CUstream stream = test_stream();
    CUdeviceptr p, q, out = test_zeros(8);

    hold(stream);
    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, stream));
    ok(test_launch_poke(p, 1, stream));
    ok(cuMemcpyDtoDAsync_v2(out, p, 4, stream));
    ok(cuMemFreeAsync(p, stream));
    ok(cuMemAllocFromPoolAsync(&q, 4000, pool, stream));
    ck_assert_uint_eq(q, p); /* the free has not happened yet */
    ok(test_launch_poke(q, 2, stream));
    ok(cuMemcpyDtoDAsync_v2(out + 4, q, 4, stream));
    let_go();
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(out), 1);
    ck_assert_uint_eq(test_read(out + 4), 2);
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4096);
}
END_TEST

START_TEST(other_streams_reuse_what_they_may)
{
    CUmemoryPool pool = new_pool();
    CUstream a = test_stream(), b = test_stream();
    CUdeviceptr p, q, r;
    CUevent event;

    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    hold(a);
    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, a));
    ok(cuMemFreeAsync(p, a));
    ok(cuMemAllocFromPoolAsync(&q, 4096, pool, b));
    ck_assert_uint_ne(q, p); /* nothing orders the two streams */
    ok(cuEventRecord(event, a));
    ok(cuStreamWaitEvent(b, event, 0));
    set(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    ok(cuMemAllocFromPoolAsync(&r, 4096, pool, b));
    ck_assert_uint_ne(r, p);
    set(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
    ok(cuMemAllocFromPoolAsync(&r, 4096, pool, b));
    ck_assert_uint_eq(r, p); /* an event does */
    let_go();
    ok(cuStreamSynchronize(b));
}
END_TEST

START_TEST(a_stream_waits_for_anothers_free_where_memory_is_short)
{
    CUmemoryPool pool;
    CUstream a, b;
    CUdeviceptr p, q;

    setenv("DMI_STANDIN_MEMORY", "8M", 1);
    test_setup_module();
    pool = new_pool();
    a = test_stream();
    b = test_stream();
    hold(a);
    ok(cuMemAllocFromPoolAsync(&p, 6 << 20, pool, a));
    ok(cuMemFreeAsync(p, a));
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    fails(cuMemAllocFromPoolAsync(&q, 6 << 20, pool, b), CUDA_ERROR_OUT_OF_MEMORY);
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
    ok(cuMemAllocFromPoolAsync(&q, 6 << 20, pool, b));
    ck_assert_uint_eq(q, p);
    fails(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    ok(test_launch_poke(q, 4, b));
    let_go();
    ok(cuStreamSynchronize(b));
    ck_assert_uint_eq(test_read(q), 4);
}
END_TEST

START_TEST(a_free_that_is_over_gives_its_block_to_anybody_who_may)
{
    CUmemoryPool pool = new_pool();
    CUstream a = test_stream(), b = test_stream();
    CUdeviceptr p, q;
    uint64_t all = UINT64_MAX;

    ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, a));
    ok(cuMemFreeAsync(p, a));
    ok(cuStreamSynchronize(a));
    set(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    ok(cuMemAllocFromPoolAsync(&q, 4096, pool, b));
    ck_assert_uint_ne(q, p);
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1);
    ok(cuMemAllocFromPoolAsync(&q, 4096, pool, b));
    ck_assert_uint_eq(q, p);
}
END_TEST

START_TEST(a_pool_keeps_what_its_threshold_allows)
{
    CUmemoryPool pool = new_pool();
    CUstream stream = test_stream();
    size_t before = test_free_bytes();
    uint64_t threshold = 1 << 20;
    CUdeviceptr p, q;

    ok(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, stream));
    ck_assert_uint_eq(test_free_bytes(), before - (1 << 20));
    ok(cuMemFreeAsync(p, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_free_bytes(), before); /* 0 unless set */
    ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    ok(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, stream));
    ok(cuMemAllocFromPoolAsync(&q, 1 << 20, pool, stream));
    ok(cuMemFreeAsync(p, stream));
    ok(cuMemFreeAsync(q, stream));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 1 << 20);
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 2 << 20);
    ck_assert_uint_eq(test_free_bytes(), before - (1 << 20));
    ok(cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(test_free_bytes(), before);
    threshold = 1;
    fails(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &threshold),
          CUDA_ERROR_INVALID_VALUE);
    fails(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &threshold),
          CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(what_pools_keep_goes_to_whoever_needs_it)
{
    CUmemoryPool pool;
    CUdeviceptr p, q;
    uint64_t all = UINT64_MAX;

    setenv("DMI_STANDIN_MEMORY", "8M", 1);
    test_setup();
    pool = new_pool();
    ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    ok(cuMemAllocFromPoolAsync(&p, 6 << 20, pool, NULL));
    fails(cuMemAlloc_v2(&q, 6 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemFreeAsync(p, NULL));
    ok(cuCtxSynchronize());
    ok(cuMemAlloc_v2(&q, 6 << 20));
}
END_TEST

START_TEST(memory_that_was_freed_is_unknown_and_faults)
{
    CUstream stream = test_stream();
    CUdeviceptr p, base;
    CUmemoryPool pool, default_pool;
    size_t size;
    uint64_t all = UINT64_MAX;

    ok(cuDeviceGetDefaultMemPool(&default_pool, 0));
    ok(cuMemPoolSetAttribute(default_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    ok(cuMemAllocAsync(&p, 1000, stream));
    ok(cuMemGetAddressRange_v2(&base, &size, p + 100));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, 1000);
    ok(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    ck_assert_ptr_eq(pool, default_pool);
    ok(cuMemFreeAsync(p, stream));
    fails(cuMemGetAddressRange_v2(&base, &size, p), CUDA_ERROR_NOT_FOUND);
    fails(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamSynchronize(stream));
    ok(test_launch_poke(p, 1, stream));
    fails(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(nothing_is_allocated_when_nothing_is_asked_for)
{
    CUstream stream = test_stream();
    CUdeviceptr p = 1;
    CUgraph graph;
    size_t n;

    ok(cuMemAllocAsync(&p, 0, stream));
    ck_assert_uint_eq(p, 0);
    ok(cuMemFreeAsync(p, stream));
    ok(cuMemAllocFromPoolAsync(&p, 0, new_pool(), stream));
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuMemAllocAsync(&p, 0, stream));
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuGraphGetNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(pools_of_host_and_managed_memory)
{
    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
                             .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    CUmemLocation host = { .type = CU_MEM_LOCATION_TYPE_HOST };
    CUmemoryPool pool, seen;
    CUdeviceptr p;
    unsigned managed;

    ok(cuMemPoolCreate(&pool, &props));
    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
    ok(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    ck_assert_uint_eq(managed, 1);
    ok(test_launch_poke(p, 7, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(*(uint32_t *)(uintptr_t)p, 7);
    ok(cuMemFreeAsync(p, NULL));
    ok(cuMemSetMemPool(&props.location, CU_MEM_ALLOCATION_TYPE_MANAGED, pool));
    ok(cuMemGetMemPool(&seen, &props.location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    ck_assert_ptr_eq(seen, pool);
    fails(cuMemSetMemPool(&props.location, CU_MEM_ALLOCATION_TYPE_PINNED, pool),
          CUDA_ERROR_INVALID_VALUE);
    ok(cuMemPoolDestroy(pool));
    ok(cuMemGetMemPool(&seen, &props.location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    ck_assert_ptr_ne(seen, pool);

    ok(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    fails(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
    ok(test_launch_poke(p, 8, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(*(uint32_t *)(uintptr_t)p, 8);
    ok(cuMemFree_v2(p));
}
END_TEST

START_TEST(a_destroyed_pool_ends_with_its_last_block)
{
    CUmemoryPool pool = new_pool();
    CUdeviceptr p;
    size_t before = test_free_bytes();

    ok(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
    ok(cuMemPoolDestroy(pool));
    ok(test_launch_poke(p, 3, NULL));
    ck_assert_uint_eq(test_read(p), 3);
    ok(cuMemFreeAsync(p, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_free_bytes(), before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pools");
    TCase *pools = tcase_create("pools"), *small = tcase_create("small device");

    tcase_add_checked_fixture(pools, test_setup_module, NULL);
    tcase_add_test(pools, a_block_is_reused_in_stream_order);
    tcase_add_test(pools, other_streams_reuse_what_they_may);
    tcase_add_test(pools, a_free_that_is_over_gives_its_block_to_anybody_who_may);
    tcase_add_test(pools, a_pool_keeps_what_its_threshold_allows);
    tcase_add_test(pools, memory_that_was_freed_is_unknown_and_faults);
    tcase_add_test(pools, nothing_is_allocated_when_nothing_is_asked_for);
    tcase_add_test(pools, pools_of_host_and_managed_memory);
    tcase_add_test(pools, a_destroyed_pool_ends_with_its_last_block);
    suite_add_tcase(suite, pools);
    tcase_add_test(small, a_stream_waits_for_anothers_free_where_memory_is_short);
    tcase_add_test(small, what_pools_keep_goes_to_whoever_needs_it);
    suite_add_tcase(suite, small);
    return test_run(suite);
}
