/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, memory, modules, launches, streams, events, errors that stick, fork and exit. */
#include "test_standin.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- before and outside a context ---- */

START_TEST(calls_before_init_are_refused)
{
    int n;
    CUdeviceptr p;

    fails(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_NOT_INITIALIZED);
    ok(cuDriverGetVersion(&n));
    ck_assert_int_eq(n,
                     getenv("DMI_STANDIN_VERSION") ? atoi(getenv("DMI_STANDIN_VERSION")) : 13000);
    fails(cuInit(1), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(calls_without_a_context_are_refused)
{
    CUdeviceptr p;
    CUcontext ctx;

    ok(cuInit(0));
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxGetCurrent(&ctx));
    ck_assert_ptr_null(ctx);
    fails(cuCtxPopCurrent_v2(&ctx), CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

START_TEST(contexts_stack_per_thread)
{
    CUcontext a, b, c;

    ok(cuInit(0));
    ok(cuCtxCreate_v2(&a, 0, 0));
    ok(cuCtxCreate_v2(&b, 0, 0));
    ok(cuCtxGetCurrent(&c));
    ck_assert_ptr_eq(c, b);
    ok(cuCtxPushCurrent_v2(a));
    ok(cuCtxPopCurrent_v2(&c));
    ck_assert_ptr_eq(c, a);
    ok(cuCtxSetCurrent(a));
    ok(cuCtxGetCurrent(&c));
    ck_assert_ptr_eq(c, a);
    ok(cuCtxDestroy_v2(b));
    ok(cuCtxDestroy_v2(a));
}
END_TEST

START_TEST(primary_context_lives_while_retained)
{
    CUcontext a, b;
    unsigned flags;
    int active;

    ok(cuInit(0));
    ok(cuDevicePrimaryCtxGetState(0, &flags, &active));
    ck_assert_int_eq(active, 0);
    ok(cuDevicePrimaryCtxRetain(&a, 0));
    ok(cuDevicePrimaryCtxRetain(&b, 0));
    ck_assert_ptr_eq(a, b);
    ok(cuDevicePrimaryCtxRelease_v2(0));
    ok(cuDevicePrimaryCtxGetState(0, &flags, &active));
    ck_assert_int_eq(active, 1);
    fails(cuCtxDestroy_v2(a), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuDevicePrimaryCtxRelease_v2(0));
    fails(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

START_TEST(device_says_what_it_is)
{
    char name[64];
    int major, minor, v;
    const char *text;

    test_setup();
    ok(cuDeviceGetName(name, sizeof(name), 0));
    ck_assert_str_eq(name, "DMI stand-in (no GPU)");
    ok(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    ok(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    ck_assert_int_eq(major * 10 + minor, 80);
    for (int a = 1; a < CU_DEVICE_ATTRIBUTE_MAX; a++)
        ok(cuDeviceGetAttribute(&v, (CUdevice_attribute)a, 0));
    fails(cuDeviceGetAttribute(&v, (CUdevice_attribute)0, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuDeviceGet(&v, 1), CUDA_ERROR_INVALID_DEVICE);
    ok(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    ck_assert_str_eq(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    ok(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
    ck_assert_str_eq(text, "invalid value");
    fails(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* ---- memory ---- */

START_TEST(fresh_memory_is_poisoned)
{
    CUdeviceptr p;
    unsigned char bytes[1000];

    ok(cuMemAlloc_v2(&p, sizeof(bytes)));
    ok(cuMemcpyDtoH_v2(bytes, p, sizeof(bytes)));
    for (size_t i = 0; i < sizeof(bytes); i++)
        ck_assert_uint_eq(bytes[i], 0xff);
    ck_assert_uint_eq(p % 512, 0);
}
END_TEST

START_TEST(addresses_come_back_after_free)
{
    CUdeviceptr a, b;

    ok(cuMemAlloc_v2(&a, 4096));
    ok(cuMemFree_v2(a));
    fails(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAlloc_v2(&b, 4096));
    ck_assert_uint_eq(a, b);
    fails(cuMemFree_v2(b + 512), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemFree_v2(0));
}
END_TEST

START_TEST(ranges_are_known_from_any_pointer_inside)
{
    CUdeviceptr p, base;
    size_t size;
    unsigned type;
    int ordinal;

    ok(cuMemAlloc_v2(&p, 10000));
    ok(cuMemGetAddressRange_v2(&base, &size, p + 9999));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, 10000);
    fails(cuMemGetAddressRange_v2(&base, &size, p + 10000), CUDA_ERROR_NOT_FOUND);
    ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
    ok(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p + 5));
    ck_assert_int_eq(ordinal, 0);
    fails(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                (CUdeviceptr)(uintptr_t)&type),
          CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(pointers_are_known_without_a_context)
{
    CUpointer_attribute both[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    CUcontext context;
    CUdeviceptr p;
    unsigned type = 0;
    int ordinal = -1;
    void *data[] = { &type, &ordinal };

    ok(cuMemAlloc_v2(&p, 64));
    ok(cuCtxPopCurrent_v2(&context));
    ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
    ok(cuPointerGetAttributes(2, both, data, p));
    ck_assert_int_eq(ordinal, 0);
    ok(cuCtxPushCurrent_v2(context));
}
END_TEST

START_TEST(more_than_there_is_cannot_be_had)
{
    CUdeviceptr p;
    size_t free_bytes, total, before;

    ok(cuMemGetInfo_v2(&before, &total));
    fails(cuMemAlloc_v2(&p, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    fails(cuMemAlloc_v2(&p, (size_t)-1), CUDA_ERROR_OUT_OF_MEMORY);
    fails(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAlloc_v2(&p, 1 << 20));
    ok(cuMemGetInfo_v2(&free_bytes, &total));
    ck_assert_uint_eq(before - free_bytes, 1 << 20);
}
END_TEST

START_TEST(host_threads_cannot_touch_device_memory)
{
    CUdeviceptr p;

    ok(cuMemAlloc_v2(&p, 64));
    *(volatile char *)(uintptr_t)p = 1;
}
END_TEST

START_TEST(copies_beyond_an_allocation_are_refused_and_nothing_sticks)
{
    CUdeviceptr p = test_zeros(4096);
    static char bytes[8192];

    fails(cuMemcpyDtoH_v2(bytes, p, 4097), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemcpyHtoD_v2(p + 1, bytes, 4096), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemsetD8_v2(p + 4090, 0, 10), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemcpyDtoH_v2(bytes, 0x1000, 16), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemcpyDtoH_v2(bytes, p, 4096));
    ok(cuCtxSynchronize());
}
END_TEST

START_TEST(two_dimensional_copies_keep_their_pitches)
{
    CUdeviceptr p = test_zeros(8 * 16);
    unsigned char rows[3 * 4], back[8 * 16];

    for (size_t i = 0; i < sizeof(rows); i++)
        rows[i] = (unsigned char)(i + 1);
    ok(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_HOST,
                                       .srcHost = rows,
                                       .srcPitch = 4,
                                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                       .dstDevice = p,
                                       .dstPitch = 16,
                                       .dstXInBytes = 2,
                                       .dstY = 1,
                                       .WidthInBytes = 4,
                                       .Height = 3 }));
    ok(cuMemcpyDtoH_v2(back, p, sizeof(back)));
    for (int y = 0; y < 8; y++) {
        for (int x = 0; x < 16; x++)
            ck_assert_uint_eq(back[y * 16 + x],
                              x >= 2 && x < 6 && y >= 1 && y < 4 ? (y - 1) * 4 + x - 1 : 0);
    }
}
END_TEST

START_TEST(pinned_memory_is_reached_by_kernels_and_pageable_is_not)
{
    uint32_t *pinned, *mapped;
    unsigned flags;
    CUdeviceptr device;

    test_module = NULL;
    ok(cuModuleLoadData(&test_module, test_ptx));
    ok(cuMemHostAlloc((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    ok(cuMemHostGetDevicePointer_v2(&device, pinned, 0));
    ok(cuMemHostGetFlags(&flags, pinned));
    *pinned = 1;
    ok(test_launch_add(device, 1, 41, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(*pinned, 42);
    mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ok(cuMemHostRegister_v2(mapped, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
    fails(cuMemHostRegister_v2(mapped, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok(test_launch_poke((CUdeviceptr)(uintptr_t)(mapped + 3), 7, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(mapped[3], 7);
    ok(cuMemHostUnregister(mapped));
    fails(cuMemHostUnregister(mapped), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok(test_launch_poke((CUdeviceptr)(uintptr_t)mapped, 7, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(stream_ordered_memory_is_freed_in_order)
{
    CUstream stream;
    CUdeviceptr p;
    CUmemoryPool pool;
    uint64_t used;
    uint32_t value = 0;

    ok(cuModuleLoadData(&test_module, test_ptx));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuMemAllocAsync(&p, 4096, stream));
    ok(cuMemsetD32Async(p, 5, 1024, stream));
    ok(test_launch_add(p, 1024, 3, stream));
    ok(cuMemcpyDtoHAsync_v2(&value, p + 4092, 4, stream));
    ok(cuMemFreeAsync(p, stream));
    fails(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(value, 8);
    ok(cuDeviceGetDefaultMemPool(&pool, 0));
    ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    ck_assert_uint_eq(used, 0);
}
END_TEST

/* ---- modules and launches ---- */

START_TEST(module_variables_have_addresses_and_first_values)
{
    CUdeviceptr p;
    size_t bytes;

    ok(cuModuleGetGlobal_v2(&p, &bytes, test_module, "counter"));
    ck_assert_uint_eq(bytes, 4);
    ck_assert_uint_eq(test_read(p), 5);
    ok(cuLaunchKernel(test_function("bump"), 10, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    ck_assert_uint_eq(test_read(p), 325);
    fails(cuModuleGetGlobal_v2(&p, &bytes, test_module, "nothing"), CUDA_ERROR_NOT_FOUND);
}
END_TEST

START_TEST(two_modules_of_one_text_have_variables_of_their_own)
{
    CUmodule other;
    CUfunction bump;
    CUdeviceptr a, b;
    size_t bytes;

    ok(cuModuleLoadData(&other, test_ptx));
    ok(cuModuleGetFunction(&bump, other, "bump"));
    ok(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    ok(cuModuleGetGlobal_v2(&a, &bytes, test_module, "counter"));
    ok(cuModuleGetGlobal_v2(&b, &bytes, other, "counter"));
    ck_assert_uint_eq(test_read(a), 5);
    ck_assert_uint_eq(test_read(b), 6);
}
END_TEST

START_TEST(functions_describe_their_parameters)
{
    CUfunction add = test_function("add");
    size_t offset, size;
    const char *name;
    CUmodule module;

    ok(cuFuncGetParamInfo(add, 0, &offset, &size));
    ck_assert_uint_eq(offset, 0);
    ck_assert_uint_eq(size, 8);
    ok(cuFuncGetParamInfo(add, 2, &offset, &size));
    ck_assert_uint_eq(offset, 12);
    ck_assert_uint_eq(size, 4);
    fails(cuFuncGetParamInfo(add, 3, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    ok(cuFuncGetName(&name, add));
    ck_assert_str_eq(name, "add");
    ok(cuFuncGetModule(&module, add));
    ck_assert_ptr_eq(module, test_module);
    fails(cuModuleGetFunction(&add, test_module, "none"), CUDA_ERROR_NOT_FOUND);
}
END_TEST

START_TEST(a_kernel_of_a_library_launches_as_a_function)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUdeviceptr p = test_zeros(256);
    uint32_t n = 64, v = 9;
    void *params[] = { &p, &n, &v };
    const char *name;

    ok(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ok(cuLibraryGetKernel(&kernel, library, "add"));
    ok(cuKernelGetName(&name, kernel));
    ck_assert_str_eq(name, "add");
    ok(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    ck_assert_uint_eq(test_read(p + 252), 9);
    ok(cuKernelGetFunction(&function, kernel));
    ok(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    ck_assert_uint_eq(test_read(p), 18);
    ok(cuLibraryUnload(library));
}
END_TEST

START_TEST(packed_parameters_and_arrays_of_pointers_are_the_same)
{
    CUdeviceptr p = test_zeros(256);
    struct {
        CUdeviceptr p;
        uint32_t n, v;
    } packed = { p, 64, 4 };
    size_t size = sizeof(packed), less = sizeof(packed) - 1;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                      CU_LAUNCH_PARAM_END };
    void *params[] = { &packed.p, &packed.n, &packed.v };
    CUfunction add = test_function("add");

    ok(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
    ok(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    ck_assert_uint_eq(test_read(p), 8);
    fails(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, NULL, params, extra), CUDA_ERROR_INVALID_VALUE);
    fails(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    extra[3] = &less;
    fails(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, extra), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(parameters_are_copied_by_the_call)
{
    CUdeviceptr p = test_zeros(4), kept = p;
    uint32_t n = 1, v = 1;
    void *params[] = { &p, &n, &v };

    ok(test_launch_slow(test_zeros(4), 3000000, NULL));
    ok(cuLaunchKernel(test_function("add"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    v = 100;
    p = 0;
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(kept), 1);
}
END_TEST

START_TEST(impossible_launches_are_refused)
{
    CUdeviceptr p = test_zeros(4);
    uint32_t n = 1, v = 1;
    void *params[] = { &p, &n, &v };
    CUfunction add = test_function("add");

    fails(cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuLaunchKernel(add, 1, 70000, 1, 1, 1, 1, 0, NULL, params, NULL),
          CUDA_ERROR_INVALID_VALUE);
    fails(cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL),
          CUDA_ERROR_INVALID_VALUE);
    fails(cuLaunchKernel(add, 1, 1, 1, 64, 64, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 60000, NULL, params, NULL),
          CUDA_ERROR_INVALID_VALUE);
    ok(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
    ok(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 60000, NULL, params, NULL));
    fails(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(what_is_not_ptx_is_refused)
{
    static const uint32_t elf[16] = { 0x464c457f };
    CUmodule module;
    char log[256] = "";
    CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
    void *values[] = { log, (void *)(uintptr_t)sizeof(log) };

    fails(cuModuleLoadData(&module, elf), CUDA_ERROR_NO_BINARY_FOR_GPU);
    fails(cuModuleLoadData(&module, ""), CUDA_ERROR_INVALID_IMAGE);
    fails(cuModuleLoadDataEx(&module,
                             ".version 6.4\n.target sm_75\n.address_size 64\n.entry k()\n{\n "
                             "frobnicate.u32 %r1;\n}\n",
                             2, options, values),
          CUDA_ERROR_INVALID_PTX);
    ck_assert_msg(strstr(log, "frobnicate") != NULL, "log: %s", log);
    ck_assert_msg(strstr(log, "6") != NULL, "log: %s", log);
}
END_TEST

/* ---- asynchrony ---- */

START_TEST(work_runs_behind_the_callers_back)
{
    CUdeviceptr p = test_zeros(4);
    CUstream stream;
    CUevent event;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&event, 0));
    ok(cuEventQuery(event));
    ok(test_launch_slow(p, 50000000, stream));
    ok(cuEventRecord(event, stream));
    fails(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    fails(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    ok(cuEventSynchronize(event));
    ok(cuStreamQuery(stream));
    ck_assert_uint_eq(test_read(p), 50000000);
}
END_TEST

START_TEST(streams_wait_for_events_of_others)
{
    CUdeviceptr p = test_zeros(4);
    CUstream a, b;
    CUevent event;

    ok(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 20; i++) {
        ok(test_launch_slow(p, 100000, a));
        ok(cuEventRecord(event, a));
        ok(cuStreamWaitEvent(b, event, 0));
        ok(test_launch_add(p, 1, 1, b));
        ok(cuEventRecord(event, b));
        ok(cuStreamWaitEvent(a, event, 0));
        ok(cuStreamSynchronize(b));
        ck_assert_uint_eq(test_read(p), 100001);
    }
}
END_TEST

START_TEST(the_legacy_stream_waits_for_blocking_streams_only)
{
    CUdeviceptr p = test_zeros(4), q = test_zeros(4);
    CUstream blocking, free_stream;

    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ok(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    ok(test_launch_slow(p, 10000000, blocking));
    ok(test_launch_add(p, 1, 1, NULL));
    ok(test_launch_add(p, 1, 1, blocking));
    ok(cuStreamSynchronize(blocking));
    ck_assert_uint_eq(test_read(p), 10000002);
    ok(test_launch_slow(q, 100000000, free_stream));
    ok(test_launch_add(p, 1, 1, NULL));
    ok(cuStreamSynchronize(NULL));
    fails(cuStreamQuery(free_stream), CUDA_ERROR_NOT_READY);
    ok(cuCtxSynchronize());
    ok(cuStreamQuery(free_stream));
}
END_TEST

START_TEST(per_thread_variants_use_another_default_stream)
{
    unsigned long long legacy, per_thread, explicit_id;
    CUdeviceptr p = test_zeros(4);
    uint32_t n = 1, v = 2;
    void *params[] = { &p, &n, &v };

    ok(cuStreamGetId(NULL, &legacy));
    ok(cuStreamGetId_ptsz(NULL, &per_thread));
    ok(cuStreamGetId(CU_STREAM_PER_THREAD, &explicit_id));
    ck_assert_uint_ne(legacy, per_thread);
    ck_assert_uint_eq(per_thread, explicit_id);
    ok(cuLaunchKernel_ptsz(test_function("add"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    ok(cuStreamSynchronize_ptsz(NULL));
    ck_assert_uint_eq(test_read(p), 2);
}
END_TEST

static void set_flag(void *flag)
{
    int n;

    *(volatile int *)flag = cuDeviceGetCount(&n) == CUDA_ERROR_NOT_PERMITTED ? 1 : 2;
}

static void callback(CUstream stream, CUresult status, void *flag)
{
    (void)stream;
    *(volatile int *)flag = status == CUDA_SUCCESS ? 3 : 4;
}

START_TEST(host_functions_run_in_order_and_may_not_call_the_driver)
{
    CUdeviceptr p = test_zeros(4);
    volatile int flag = 0, called = 0;

    ok(test_launch_slow(p, 1000000, NULL));
    ok(cuLaunchHostFunc(NULL, set_flag, (void *)&flag));
    ok(cuStreamAddCallback(NULL, callback, (void *)&called, 0));
    ok(cuStreamSynchronize(NULL));
    ck_assert_int_eq(flag, 1);
    ck_assert_int_eq(called, 3);
}
END_TEST

START_TEST(events_tell_the_time_between_them)
{
    CUevent a, b;
    float ms;

    ok(cuEventCreate(&a, 0));
    ok(cuEventCreate(&b, 0));
    fails(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    ok(cuEventRecord(a, NULL));
    ok(test_launch_slow(test_zeros(4), 5000000, NULL));
    ok(cuEventRecord(b, NULL));
    ok(cuEventSynchronize(b));
    ok(cuEventElapsedTime(&ms, a, b));
    ck_assert(ms > 0.1f && ms < 60000.0f);
}
END_TEST

START_TEST(a_destroyed_streams_work_still_ends)
{
    CUdeviceptr p = test_zeros(4);
    CUstream stream;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(test_launch_slow(p, 5000000, stream));
    ok(cuStreamDestroy_v2(stream));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(p), 5000000);
}
END_TEST

START_TEST(pageable_sources_may_change_after_the_call)
{
    CUdeviceptr p = test_zeros(4), wait = test_zeros(4);
    CUstream stream;
    uint32_t value = 17;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(test_launch_slow(wait, 5000000, stream));
    ok(cuMemcpyHtoDAsync_v2(p, &value, 4, stream));
    value = 18;
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 17);
}
END_TEST

static void *launch_many(void *pointer)
{
    CUdeviceptr p = *(CUdeviceptr *)pointer;
    CUstream stream;

    ok(cuCtxSetCurrent(test_ctx));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 500; i++)
        ok(test_launch_add(p, 64, 1, stream));
    ok(cuStreamSynchronize(stream));
    ok(cuStreamDestroy_v2(stream));
    return NULL;
}

START_TEST(threads_launch_at_once)
{
    pthread_t threads[4];
    CUdeviceptr p[4];

    for (int i = 0; i < 4; i++) {
        p[i] = test_zeros(256);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, launch_many, &p[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(test_read(p[i] + 252), 500);
    }
}
END_TEST

/* ---- errors that stick ---- */

START_TEST(an_illegal_access_stays_with_the_context)
{
    CUdeviceptr p = test_zeros(4096), q;
    CUfunction poke = test_function("poke");
    CUcontext other;
    CUevent event;
    uint32_t value = 1;
    void *params[] = { &p, &value };

    ok(cuEventCreate(&event, 0));
    ok(test_launch_poke(p + (1 << 20), 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuLaunchKernel(poke, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
          CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuMemcpyDtoH_v2(&value, p, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuMemAlloc_v2(&q, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(cuCtxDestroy_v2(test_ctx));
    ok(cuCtxCreate_v2(&other, 0, 0));
    ok(cuMemAlloc_v2(&q, 16));
    ok(cuCtxSynchronize());
}
END_TEST

START_TEST(a_kernel_cannot_use_freed_memory)
{
    CUdeviceptr p = test_zeros(4096);

    ok(cuMemFree_v2(p));
    ok(test_launch_poke(p, 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(a_null_pointer_in_a_kernel_is_illegal)
{
    ok(test_launch_poke(0, 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* ---- processes ---- */

START_TEST(the_child_of_a_fork_is_refused_and_does_not_hang)
{
    CUdeviceptr p = test_zeros(4);
    pid_t pid;
    int status;

    ok(test_launch_slow(p, 20000000, NULL));
    pid = fork();
    if (pid == 0) {
        int n;

        alarm(10);
        _exit(cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(p), 20000000);
}
END_TEST

static void late_call(void)
{
    int n;

    /* Registered before cuInit(), so it runs after the driver's handler. */
    if (cuDeviceGetCount(&n) != CUDA_ERROR_DEINITIALIZED)
        _exit(3);
}

START_TEST(exit_does_not_wait_for_work_and_later_calls_are_refused)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        alarm(20);
        atexit(late_call);
        test_setup_module();
        CUdeviceptr one = test_zeros(4), other = test_zeros(4); /* which waits for NULL's stream */
        ok(test_launch_slow(one, 4000000000u, NULL));
        ok(test_launch_slow(other, 4000000000u, CU_STREAM_PER_THREAD));
        exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("standin");
    TCase *bare = tcase_create("bare"), *memory = tcase_create("memory"),
          *module = tcase_create("module");

    tcase_add_test(bare, calls_before_init_are_refused);
    tcase_add_test(bare, calls_without_a_context_are_refused);
    tcase_add_test(bare, contexts_stack_per_thread);
    tcase_add_test(bare, primary_context_lives_while_retained);
    tcase_add_test(bare, device_says_what_it_is);
    tcase_add_test(bare, exit_does_not_wait_for_work_and_later_calls_are_refused);
    suite_add_tcase(suite, bare);

    tcase_add_checked_fixture(memory, test_setup, NULL);
    tcase_add_test(memory, fresh_memory_is_poisoned);
    tcase_add_test(memory, addresses_come_back_after_free);
    tcase_add_test(memory, ranges_are_known_from_any_pointer_inside);
    tcase_add_test(memory, pointers_are_known_without_a_context);
    tcase_add_test(memory, more_than_there_is_cannot_be_had);
    tcase_add_test_raise_signal(memory, host_threads_cannot_touch_device_memory, SIGSEGV);
    tcase_add_test(memory, copies_beyond_an_allocation_are_refused_and_nothing_sticks);
    tcase_add_test(memory, two_dimensional_copies_keep_their_pitches);
    tcase_add_test(memory, pinned_memory_is_reached_by_kernels_and_pageable_is_not);
    tcase_add_test(memory, stream_ordered_memory_is_freed_in_order);
    suite_add_tcase(suite, memory);

    tcase_add_checked_fixture(module, test_setup_module, NULL);
    tcase_set_timeout(module, 60);
    tcase_add_test(module, module_variables_have_addresses_and_first_values);
    tcase_add_test(module, two_modules_of_one_text_have_variables_of_their_own);
    tcase_add_test(module, functions_describe_their_parameters);
    tcase_add_test(module, a_kernel_of_a_library_launches_as_a_function);
    tcase_add_test(module, packed_parameters_and_arrays_of_pointers_are_the_same);
    tcase_add_test(module, parameters_are_copied_by_the_call);
    tcase_add_test(module, impossible_launches_are_refused);
    tcase_add_test(module, what_is_not_ptx_is_refused);
    tcase_add_test(module, work_runs_behind_the_callers_back);
    tcase_add_test(module, streams_wait_for_events_of_others);
    tcase_add_test(module, the_legacy_stream_waits_for_blocking_streams_only);
    tcase_add_test(module, per_thread_variants_use_another_default_stream);
    tcase_add_test(module, host_functions_run_in_order_and_may_not_call_the_driver);
    tcase_add_test(module, events_tell_the_time_between_them);
    tcase_add_test(module, a_destroyed_streams_work_still_ends);
    tcase_add_test(module, pageable_sources_may_change_after_the_call);
    tcase_add_test(module, threads_launch_at_once);
    tcase_add_test(module, an_illegal_access_stays_with_the_context);
    tcase_add_test(module, a_kernel_cannot_use_freed_memory);
    tcase_add_test(module, a_null_pointer_in_a_kernel_is_illegal);
    tcase_add_test(module, the_child_of_a_fork_is_refused_and_does_not_hang);
    suite_add_tcase(suite, module);
    return test_run(suite);
}
