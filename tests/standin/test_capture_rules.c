/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls a stream capture forbids, to whom, and that they end it. In its own words cuda.h says "potentially
 * unsafe API calls" (cuThreadExchangeStreamCaptureMode()); the programming guide, "Prohibited and unhandled
 * operations", has those that conflict with any capture.
 */
#include "test_standin.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

static CUstream captured, blocking, plain;
static CUevent outside, inside;
static CUdeviceptr device, managed;
static CUmodule module;
static uint32_t *pinned, *mapped, *registered;
static char bytes[4096];

static void setup(void)
{
    test_setup_module();
    ok(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ok(cuEventCreate(&outside, 0));
    ok(cuEventCreate(&inside, 0));
    ok(cuEventRecord(outside, plain));
    ok(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    ok(cuModuleLoadData(&module, test_ptx));
    ok(cuMemHostAlloc((void **)&pinned, 4096, 0));
    mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    registered = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ok(cuMemHostRegister_v2(registered, 4096, 0));
    device = test_zeros(4096);
    ok(cuCtxSynchronize());
}

/* ---- the calls ---- */

#define CALL(name, call)                                                                           \
    static CUresult name(void)                                                                     \
    {                                                                                              \
        return call;                                                                               \
    }
#define OUT(type) (&(type){ 0 })
CALL(alloc, cuMemAlloc_v2(OUT(CUdeviceptr), 64))
CALL(alloc_pitch, cuMemAllocPitch_v2(OUT(CUdeviceptr), OUT(size_t), 64, 2, 4))
CALL(alloc_managed, cuMemAllocManaged(OUT(CUdeviceptr), 64, CU_MEM_ATTACH_GLOBAL))
CALL(free_device, cuMemFree_v2(device))
CALL(alloc_host, cuMemAllocHost_v2(OUT(void *), 64))
CALL(host_alloc, cuMemHostAlloc(OUT(void *), 64, 0))
CALL(free_host, cuMemFreeHost(pinned))
CALL(host_register, cuMemHostRegister_v2(mapped, 4096, 0))
CALL(host_unregister, cuMemHostUnregister(registered))
CALL(load_data, cuModuleLoadData(OUT(CUmodule), test_ptx))
CALL(load_data_ex, cuModuleLoadDataEx(OUT(CUmodule), test_ptx, 0, NULL, NULL))
CALL(load_fat_binary, cuModuleLoadFatBinary(OUT(CUmodule), test_ptx))
CALL(unload, cuModuleUnload(module))
CALL(copy_to_device, cuMemcpyHtoD_v2(device, bytes, 64))
CALL(copy_to_host, cuMemcpyDtoH_v2(bytes, device, 64))
CALL(copy, cuMemcpy(device, device + 2048, 64))
CALL(set, cuMemsetD8_v2(device, 0, 64))
CALL(query_stream, cuStreamQuery(plain))
CALL(wait_for_stream, cuStreamSynchronize(plain))
CALL(query_event, cuEventQuery(outside))
CALL(wait_for_event, cuEventSynchronize(outside))
/* those that conflict with any capture */
CALL(wait_for_context, cuCtxSynchronize())
CALL(query_captured, cuStreamQuery(captured))
CALL(wait_for_captured, cuStreamSynchronize(captured))
CALL(query_event_inside, cuEventQuery(inside))
CALL(wait_for_event_inside, cuEventSynchronize(inside))
CALL(time_to_event_inside, cuEventElapsedTime(OUT(float), outside, inside))
CALL(attach, cuStreamAttachMemAsync(captured, managed, 0, CU_MEM_ATTACH_SINGLE))
/* those that no capture minds */
CALL(make_stream, cuStreamCreate(OUT(CUstream), CU_STREAM_NON_BLOCKING))
CALL(make_event, cuEventCreate(OUT(CUevent), 0))
CALL(record_elsewhere, cuEventRecord(outside, plain))
CALL(launch_elsewhere, test_launch_add(device, 4, 1, plain))
CALL(copy_elsewhere, cuMemcpyDtoHAsync_v2(pinned, device, 64, plain))
CALL(ask_range, cuMemGetAddressRange_v2(OUT(CUdeviceptr), OUT(size_t), device))
CALL(ask_pointer, cuPointerGetAttribute(OUT(uint64_t), CU_POINTER_ATTRIBUTE_BUFFER_ID, device))
CALL(ask_memory, cuMemGetInfo_v2(OUT(size_t), OUT(size_t)))
CALL(make_graph, cuGraphCreate(OUT(CUgraph), 0))

static const struct rule {
    CUresult (*fn)(void);
    CUresult unsafe;   /* to whom a capture forbids unsafe calls */
    CUresult conflict; /* to anybody, in any mode */
} rules[] = {
#define UNSAFE(fn)                                                                                 \
    {                                                                                              \
        fn, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS                                    \
    }
#define CONFLICT(fn, result)                                                                       \
    {                                                                                              \
        fn, result, result                                                                         \
    }
#define SAFE(fn)                                                                                   \
    {                                                                                              \
        fn, CUDA_SUCCESS, CUDA_SUCCESS                                                             \
    }
    UNSAFE(alloc),
    UNSAFE(alloc_pitch),
    UNSAFE(alloc_managed),
    UNSAFE(free_device),
    UNSAFE(alloc_host),
    UNSAFE(host_alloc),
    UNSAFE(free_host),
    UNSAFE(host_register),
    UNSAFE(host_unregister),
    UNSAFE(load_data),
    UNSAFE(load_data_ex),
    UNSAFE(load_fat_binary),
    UNSAFE(unload),
    UNSAFE(copy_to_device),
    UNSAFE(copy_to_host),
    UNSAFE(copy),
    UNSAFE(set),
    UNSAFE(query_stream),
    UNSAFE(wait_for_stream),
    UNSAFE(query_event),
    UNSAFE(wait_for_event),
    CONFLICT(wait_for_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    CONFLICT(query_captured, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    CONFLICT(wait_for_captured, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    CONFLICT(query_event_inside, CUDA_ERROR_CAPTURED_EVENT),
    CONFLICT(wait_for_event_inside, CUDA_ERROR_CAPTURED_EVENT),
    CONFLICT(time_to_event_inside, CUDA_ERROR_CAPTURED_EVENT),
    CONFLICT(attach, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    SAFE(make_stream),
    SAFE(make_event),
    SAFE(record_elsewhere),
    SAFE(launch_elsewhere),
    SAFE(copy_elsewhere),
    SAFE(ask_range),
    SAFE(ask_pointer),
    SAFE(ask_memory),
    SAFE(make_graph),
};
enum { N_RULES = sizeof(rules) / sizeof(rules[0]) };

/* ---- who calls ---- */

struct caller {
    CUresult (*fn)(void);
    CUstreamCaptureMode mode; /* of the thread that calls */
    CUresult result;
};

static void *call(void *data)
{
    struct caller *caller = data;
    CUstreamCaptureMode mode = caller->mode;

    ok(cuCtxSetCurrent(test_ctx));
    ok(cuThreadExchangeStreamCaptureMode(&mode));
    caller->result = caller->fn();
    ok(cuThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

static CUresult call_from(bool other_thread, CUstreamCaptureMode mode, CUresult (*fn)(void))
{
    struct caller caller = { .fn = fn, .mode = mode };
    pthread_t thread;

    if (other_thread) {
        ck_assert_int_eq(pthread_create(&thread, NULL, call, &caller), 0);
        pthread_join(thread, NULL);
    } else {
        call(&caller);
    }
    return caller.result;
}

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAX  CU_STREAM_CAPTURE_MODE_RELAXED

static const struct situation {
    CUstreamCaptureMode capture;
    bool other_thread;
    CUstreamCaptureMode thread;
    bool forbidden; /* unsafe calls */
} situations[] = {
    { GLOBAL, false, GLOBAL, true }, { GLOBAL, false, LOCAL, true },
    { GLOBAL, false, RELAX, false }, { GLOBAL, true, GLOBAL, true },
    { GLOBAL, true, LOCAL, false },  { GLOBAL, true, RELAX, false },
    { LOCAL, false, GLOBAL, true },  { LOCAL, false, LOCAL, true },
    { LOCAL, false, RELAX, false },  { LOCAL, true, GLOBAL, false },
    { LOCAL, true, RELAX, false },   { RELAX, false, GLOBAL, false },
    { RELAX, false, RELAX, false },  { RELAX, true, GLOBAL, false },
};
enum { N_SITUATIONS = sizeof(situations) / sizeof(situations[0]) };

/* One call a process, as many of them end what they are given. */
START_TEST(a_call_is_forbidden_to_whom_it_is_and_ends_the_capture)
{
    const struct rule *rule = &rules[_i / N_SITUATIONS];
    const struct situation *s = &situations[_i % N_SITUATIONS];
    CUresult expected = s->forbidden ? rule->unsafe : rule->conflict, got;
    CUstreamCaptureStatus status;
    CUgraph graph;

    ok(cuStreamBeginCapture_v2(captured, s->capture));
    ok(test_launch_add(device, 4, 1, captured));
    ok(cuEventRecord(inside, captured));
    got = call_from(s->other_thread, s->thread, rule->fn);
    ck_assert_msg(got == expected, "rule %d, situation %d: %d", _i / N_SITUATIONS,
                  _i % N_SITUATIONS, got);
    ok(cuStreamIsCapturing(captured, &status));
    ck_assert_int_eq(status, expected ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE);
    if (expected)
        fails(test_launch_add(device, 4, 1, captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    fails(cuStreamEndCapture(captured, &graph),
          expected ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    ck_assert(!graph == !!expected);
}
END_TEST

/* A capture invalidated by one call is not captured further, and the stream is usable after its end. */
START_TEST(the_stream_is_usable_after_an_invalid_capture)
{
    CUgraph graph;

    ok(cuStreamBeginCapture_v2(captured, GLOBAL));
    fails(alloc(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok(alloc());
    ok(test_launch_add(device, 4, 7, captured));
    ok(cuStreamSynchronize(captured));
    ck_assert_uint_eq(test_read(device), 7);
}
END_TEST

/* Every GLOBAL capture of the process, and the caller's own, is ended by one unsafe call. */
START_TEST(one_call_ends_all_captures_that_forbid_it)
{
    CUgraph graph;

    ok(cuStreamBeginCapture_v2(captured, GLOBAL));
    ok(cuStreamBeginCapture_v2(plain, LOCAL));
    ok(cuStreamBeginCapture_v2(blocking, RELAX));
    fails(alloc(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    fails(cuStreamEndCapture(plain, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok(cuStreamEndCapture(blocking, &graph));
}
END_TEST

static CUresult end_captured(void)
{
    return cuStreamEndCapture(captured, OUT(CUgraph));
}

START_TEST(a_capture_ends_in_its_thread_unless_relaxed)
{
    CUgraph graph;

    ok(cuStreamBeginCapture_v2(captured, GLOBAL));
    fails(call_from(true, GLOBAL, end_captured), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    ok(cuStreamEndCapture(captured, &graph));
    ok(cuStreamBeginCapture_v2(captured, LOCAL));
    fails(call_from(true, RELAX, end_captured), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    ok(cuStreamEndCapture(captured, &graph));
    ok(cuStreamBeginCapture_v2(captured, RELAX));
    ok(call_from(true, GLOBAL, end_captured));
}
END_TEST

/* Of a blocking stream: what goes to the legacy stream would have to wait for it. */
START_TEST(the_legacy_stream_conflicts_with_a_blocking_streams_capture)
{
    static CUresult (*const calls[])(void) = { copy_to_device, copy_to_host, copy, set };
    CUgraph graph;

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        ok(cuStreamBeginCapture_v2(blocking, RELAX));
        fails(call_from(true, RELAX, calls[i]), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        fails(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    ok(cuStreamBeginCapture_v2(blocking, RELAX));
    fails(cuStreamQuery(NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    fails(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("capture_rules");
    TCase *rules_case = tcase_create("rules");

    tcase_set_timeout(rules_case, 60);
    tcase_add_checked_fixture(rules_case, setup, NULL);
    tcase_add_loop_test(rules_case, a_call_is_forbidden_to_whom_it_is_and_ends_the_capture, 0,
                        N_RULES * N_SITUATIONS);
    tcase_add_test(rules_case, the_stream_is_usable_after_an_invalid_capture);
    tcase_add_test(rules_case, one_call_ends_all_captures_that_forbid_it);
    tcase_add_test(rules_case, a_capture_ends_in_its_thread_unless_relaxed);
    tcase_add_test(rules_case, the_legacy_stream_conflicts_with_a_blocking_streams_capture);
    suite_add_tcase(suite, rules_case);
    return test_run(suite);
}
