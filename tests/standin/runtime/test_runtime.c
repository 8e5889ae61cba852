/* SPDX-License-Identifier: Apache-2.0 */
/* The double of the CUDA runtime, as programs of nvcc use it: test_kernels.cu and test_machine_code.cu are such. */
#include <check.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ok(call)           ck_assert_int_eq((call), cudaSuccess)
#define fails(call, error) ck_assert_int_eq((call), (error))

void launch_add(int *to, int n, int value, cudaStream_t stream);
void launch_add_per_thread(int *to, int n, int value, cudaStream_t stream);
void launch_count(int *to);
void launch_machine_code(int *to);
const void *add_function(void);
const void *shared_function(void);
const void *step_variable(void);
const void *counter_variable(void);

enum { N = 100 };

static int *zeros(void)
{
    int *p = NULL;

    ok(cudaMalloc((void **)&p, N * sizeof(int)));
    ok(cudaMemset(p, 0, N * sizeof(int)));
    return p;
}

static int last_of(const int *p)
{
    int value = -1;

    ok(cudaMemcpy(&value, p + N - 1, sizeof(value), cudaMemcpyDeviceToHost));
    return value;
}

/* ---- kernels ---- */

START_TEST(generated_code_launches)
{
    int *p = zeros();

    launch_add(p, N, 7, NULL);
    ok(cudaGetLastError());
    launch_add(p, N, 1, cudaStreamPerThread);
    ok(cudaDeviceSynchronize());
    ck_assert_int_eq(last_of(p), 8);
}
END_TEST

START_TEST(a_kernel_is_launched_by_its_function_and_by_its_handle)
{
    int *p = zeros(), n = N, value = 3;
    void *args[] = { &p, &n, &value };
    cudaLaunchAttribute attribute = { .id = cudaLaunchAttributeCooperative, .val.cooperative = 1 };
    cudaLaunchConfig_t config = { { 4, 1, 1 }, { 32, 1, 1 }, 0, NULL, &attribute, 1 };
    cudaKernel_t kernel = NULL;
    dim3 grid = { 4, 1, 1 }, block = { 32, 1, 1 };

    ok(cudaLaunchKernel(add_function(), grid, block, args, 0, NULL));
    ok(cudaLaunchKernelExC(&config, add_function(), args));
    ok(cudaLaunchCooperativeKernel(add_function(), grid, block, args, 0, NULL));
    ok(cudaGetKernel(&kernel, add_function()));
    ok(cudaLaunchKernel((const void *)kernel, grid, block, args, 0, NULL));
    ck_assert_int_eq(last_of(p), 12);
    fails(cudaLaunchKernel(&n, grid, block, args, 0, NULL), cudaErrorInvalidDeviceFunction);
    fails(cudaLaunchKernel(counter_variable(), grid, block, args, 0, NULL),
          cudaErrorInvalidDeviceFunction);
}
END_TEST

START_TEST(variables_are_found_by_their_hosts_address)
{
    int *p = zeros(), step = 10, got = 0;
    void *address = NULL;
    size_t size = 0;

    ok(cudaMemcpyToSymbol(step_variable(), &step, sizeof(step), 0, cudaMemcpyHostToDevice));
    launch_count(p);
    ok(cudaMemcpyFromSymbol(&got, counter_variable(), sizeof(got), 0, cudaMemcpyDeviceToHost));
    ck_assert_int_eq(got, 15);
    ok(cudaGetSymbolAddress(&address, counter_variable()));
    ok(cudaMemcpy(&got, address, sizeof(got), cudaMemcpyDefault));
    ck_assert_int_eq(got, 15);
    ok(cudaGetSymbolSize(&size, counter_variable()));
    ck_assert_uint_eq(size, sizeof(int));
    fails(cudaMemcpyToSymbol(step_variable(), &step, 8, 0, cudaMemcpyHostToDevice),
          cudaErrorInvalidValue);
    fails(cudaGetSymbolAddress(&address, add_function()), cudaErrorInvalidSymbol);
}
END_TEST

START_TEST(what_a_kernel_needs_and_may_have)
{
    struct cudaFuncAttributes attributes;
    int blocks = 0, *p = zeros(), threads = 32;
    void *args[] = { &p };
    dim3 one = { 1, 1, 1 }, block = { 32, 1, 1 };

    ok(cudaFuncGetAttributes(&attributes, shared_function()));
    ck_assert_int_eq(attributes.maxThreadsPerBlock, 1024);
    ck_assert_uint_eq(attributes.sharedSizeBytes, 0);
    ck_assert_int_eq(attributes.maxDynamicSharedSizeBytes, 49152);
    ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared_function(), threads, 0));
    ck_assert_int_gt(blocks, 0);
    fails(cudaLaunchKernel(shared_function(), one, block, args, 60000, NULL),
          cudaErrorInvalidValue);
    ok(cudaFuncSetAttribute(shared_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    ok(cudaLaunchKernel(shared_function(), one, block, args, 60000, NULL));
    ok(cudaFuncGetAttributes(&attributes, shared_function()));
    ck_assert_int_eq(attributes.maxDynamicSharedSizeBytes, 60000);
    ok(cudaMemcpy(&threads, p, sizeof(threads), cudaMemcpyDeviceToHost));
    ck_assert_int_eq(threads, 31);
}
END_TEST

START_TEST(machine_code_alone_fails_by_name)
{
    char path[] = "/tmp/test_runtime_XXXXXX", text[200] = "";
    int fd = mkstemp(path), *p = zeros();

    setenv("DMI_STANDIN_MISSING", path, 1);
    for (int i = 0; i < 2; i++) {
        launch_machine_code(p);
        fails(cudaGetLastError(), cudaErrorNoKernelImageForDevice);
    }
    ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
    ck_assert_str_eq(text, "_Z18machine_code_alonePi\n");
    ck_assert_int_eq(last_of(p), 0);
    unlink(path);
}
END_TEST

/* ---- streams ---- */

START_TEST(the_default_stream_is_what_the_program_was_compiled_for)
{
    int *p = zeros();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n = 0;

    launch_add_per_thread(p, N, 1, NULL);
    ok(cudaDeviceSynchronize());
    ok(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    launch_add_per_thread(p, N, 1, NULL);
    ok(cudaGetLastError());
    ok(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    ok(cudaGraphGetNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 1);
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphLaunch(exec, cudaStreamPerThread));
    ok(cudaStreamSynchronize(cudaStreamPerThread));
    ck_assert_int_eq(last_of(p), 2);
}
END_TEST

START_TEST(capture_replay_and_events)
{
    int *p = zeros();
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    float ms = -1;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
    launch_add(p, N, 1, NULL);
    ok(cudaDeviceSynchronize());
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch_add(p, N, 2, stream);
    ok(cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    fails(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    fails(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch_add(p, N, 2, stream);
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    ok(cudaEventRecord(begin, stream));
    for (int i = 0; i < 3; i++)
        ok(cudaGraphLaunch(exec, stream));
    ok(cudaEventRecord(end, stream));
    ok(cudaEventSynchronize(end));
    ok(cudaEventElapsedTime(&ms, begin, end));
    ck_assert(ms >= 0);
    ck_assert_int_eq(last_of(p), 7);
}
END_TEST

/* ---- memory ---- */

START_TEST(nothing_is_allocated_when_nothing_is_asked_for)
{
    void *p = &p;

    ok(cudaMalloc(&p, 0));
    ck_assert_ptr_null(p);
    ok(cudaFree(NULL));
    ok(cudaFreeHost(NULL));
    ok(cudaMemcpy(NULL, NULL, 0, cudaMemcpyDefault));
    ok(cudaMemset(NULL, 0, 0));
}
END_TEST

START_TEST(copies_of_each_kind)
{
    int *a = zeros(), *b = zeros(), *pinned = NULL, value = 9, got[2] = { 0 };
    cudaStream_t stream;

    ok(cudaStreamCreate(&stream));
    ok(cudaHostAlloc((void **)&pinned, 64, cudaHostAllocDefault));
    ok(cudaMemcpyAsync(a, &value, sizeof(value), cudaMemcpyHostToDevice, stream));
    ok(cudaMemcpyAsync(b, a, sizeof(value), cudaMemcpyDeviceToDevice, stream));
    ok(cudaMemcpyAsync(pinned, b, sizeof(value), cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    ck_assert_int_eq(*pinned, 9);
    ok(cudaMemcpy2DAsync(b, 8, a, 4, 4, 2, cudaMemcpyDeviceToDevice, stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaMemcpy2D(got, 4, b, 8, 4, 1, cudaMemcpyDefault));
    ck_assert_int_eq(got[0], 9);
    ok(cudaMemcpy(got, pinned, sizeof(value), cudaMemcpyHostToHost));
    fails(cudaMemcpy(got, pinned, 4, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
}
END_TEST

START_TEST(what_a_pointer_is)
{
    struct cudaPointerAttributes attributes;
    int *device = zeros(), on_stack;
    void *pinned = NULL, *managed = NULL;

    ok(cudaPointerGetAttributes(&attributes, device));
    ck_assert_int_eq(attributes.type, cudaMemoryTypeDevice);
    ck_assert_ptr_eq(attributes.devicePointer, device);
    ck_assert_int_eq(attributes.device, 0);
    ok(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault));
    ok(cudaPointerGetAttributes(&attributes, pinned));
    ck_assert_int_eq(attributes.type, cudaMemoryTypeHost);
    ck_assert_ptr_eq(attributes.hostPointer, pinned);
    ok(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal));
    ok(cudaPointerGetAttributes(&attributes, managed));
    ck_assert_int_eq(attributes.type, cudaMemoryTypeManaged);
    ok(cudaPointerGetAttributes(&attributes, &on_stack));
    ck_assert_int_eq(attributes.type, cudaMemoryTypeUnregistered);
    ck_assert_ptr_eq(attributes.hostPointer, &on_stack);
}
END_TEST

START_TEST(pools_in_the_order_of_a_stream)
{
    int *p = NULL;
    cudaMemPool_t pool;
    uint64_t threshold = UINT64_MAX, got = 0;

    ok(cudaDeviceGetDefaultMemPool(&pool, 0));
    ok(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got));
    ck_assert_uint_eq(got, UINT64_MAX);
    ok(cudaMallocAsync((void **)&p, N * sizeof(int), NULL));
    ok(cudaMemsetAsync(p, 0, N * sizeof(int), NULL));
    launch_add(p, N, 4, NULL);
    ck_assert_int_eq(last_of(p), 4);
    ok(cudaFreeAsync(p, NULL));
    ok(cudaFreeAsync(NULL, NULL));
    ok(cudaMemPoolTrimTo(pool, 0));
}
END_TEST

/* ---- devices ---- */

static CUcontext current(void)
{
    CUcontext context = NULL;

    ck_assert_int_eq(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
}

static void *context_of_a_thread(void *device)
{
    int got = -1;

    ok(cudaGetDevice(&got));
    ck_assert_int_eq(got, 0);
    ck_assert_ptr_null(current());
    ok(cudaSetDevice(*(int *)device));
    return current();
}

START_TEST(contexts_are_made_when_they_are_needed)
{
    int n = 0, device = -1, second = 1, active = -1;
    unsigned flags;
    void *of_thread = NULL;
    pthread_t thread;

    ok(cudaGetDeviceCount(&n));
    ck_assert_int_eq(n, 2);
    ok(cudaGetDevice(&device));
    ck_assert_int_eq(device, 0);
    ck_assert_ptr_null(current());
    ok(cudaFree(NULL));
    ck_assert_ptr_nonnull(current());
    ck_assert_int_eq(cuDevicePrimaryCtxGetState(1, &flags, &active), CUDA_SUCCESS);
    ck_assert_int_eq(active, 0);
    pthread_create(&thread, NULL, context_of_a_thread, &second);
    pthread_join(thread, &of_thread);
    ok(cudaGetDevice(&device));
    ck_assert_int_eq(device, 0);
    ok(cudaSetDevice(1));
    ck_assert_ptr_eq(current(), of_thread);
    fails(cudaSetDevice(2), cudaErrorInvalidDevice);
    ok(cudaGetDevice(&device));
    ck_assert_int_eq(device, 1);
}
END_TEST

START_TEST(a_kernel_runs_on_both_devices)
{
    int *p[2], can = 0;

    for (int i = 0; i < 2; i++) {
        ok(cudaSetDevice(i));
        p[i] = zeros();
        launch_add(p[i], N, i + 1, NULL);
        ok(cudaGetLastError());
        ck_assert_int_eq(last_of(p[i]), i + 1);
    }
    ok(cudaDeviceCanAccessPeer(&can, 1, 0));
    ok(cudaMemcpyPeerAsync(p[1], 1, p[0], 0, N * sizeof(int), NULL));
    ok(cudaDeviceSynchronize());
    ck_assert_int_eq(last_of(p[1]), 1);
}
END_TEST

START_TEST(it_says_what_it_is)
{
    struct cudaDeviceProp prop;
    int version = 0, major = 0;
    void *function = NULL, *exported;
    enum cudaDriverEntryPointQueryResult status;

    ok(cudaGetDeviceProperties(&prop, 0));
    ck_assert_ptr_nonnull(strstr(prop.name, "DMI runtime double"));
    ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    ck_assert_int_eq(prop.major, major);
    ck_assert_int_eq(prop.warpSize, 32);
    ck_assert_uint_gt(prop.totalGlobalMem, 0);
    fails(cudaGetDeviceProperties(&prop, 7), cudaErrorInvalidDevice);
    ok(cudaRuntimeGetVersion(&version));
    ck_assert_int_eq(version, CUDART_VERSION);
    ok(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 3020, cudaEnableDefault, &status));
    ck_assert_int_eq(status, cudaDriverEntryPointSuccess);
    exported = (void *)(uintptr_t)cuMemAlloc;
    ck_assert_ptr_eq(function, exported);
    ok(cudaGetDriverEntryPointByVersion("cuNothing", &function, 13000, cudaEnableDefault, &status));
    ck_assert_int_eq(status, cudaDriverEntryPointSymbolNotFound);
}
END_TEST

/* ---- errors ---- */

START_TEST(an_error_stays_until_it_is_read)
{
    int version = 0;

    fails(cudaSetDevice(99), cudaErrorInvalidDevice);
    ok(cudaRuntimeGetVersion(&version));
    fails(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    fails(cudaGetLastError(), cudaErrorInvalidDevice);
    ok(cudaGetLastError());
    ck_assert_str_eq(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
    ck_assert_str_eq(cudaGetErrorString(cudaErrorInvalidDevice), "invalid device");
    ck_assert_str_eq(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}
END_TEST

START_TEST(what_it_lacks_is_an_error)
{
    struct cudaExtent extent = { 1, 1, 1 };
    struct cudaPitchedPtr pitched;

    fails(cudaMalloc3D(&pitched, extent), cudaErrorNotSupported);
    fails(cudaGetLastError(), cudaErrorNotSupported);
}
END_TEST

START_TEST(a_fault_ends_the_context)
{
    int *p = zeros();

    launch_add((int *)64, N, 1, NULL);
    fails(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    fails(cudaMemset(p, 0, 4), cudaErrorIllegalAddress);
    fails(cudaGetLastError(), cudaErrorIllegalAddress);
    fails(cudaGetLastError(), cudaErrorIllegalAddress);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runtime");
    TCase *tests = tcase_create("runtime");

    tcase_add_test(tests, generated_code_launches);
    tcase_add_test(tests, a_kernel_is_launched_by_its_function_and_by_its_handle);
    tcase_add_test(tests, variables_are_found_by_their_hosts_address);
    tcase_add_test(tests, what_a_kernel_needs_and_may_have);
    tcase_add_test(tests, machine_code_alone_fails_by_name);
    tcase_add_test(tests, the_default_stream_is_what_the_program_was_compiled_for);
    tcase_add_test(tests, capture_replay_and_events);
    tcase_add_test(tests, nothing_is_allocated_when_nothing_is_asked_for);
    tcase_add_test(tests, copies_of_each_kind);
    tcase_add_test(tests, what_a_pointer_is);
    tcase_add_test(tests, pools_in_the_order_of_a_stream);
    tcase_add_test(tests, contexts_are_made_when_they_are_needed);
    tcase_add_test(tests, a_kernel_runs_on_both_devices);
    tcase_add_test(tests, it_says_what_it_is);
    tcase_add_test(tests, an_error_stays_until_it_is_read);
    tcase_add_test(tests, what_it_lacks_is_an_error);
    tcase_add_test(tests, a_fault_ends_the_context);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
