/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loads or allocates waits for the context's work, with a lock in hand that others need (load.c). A kernel
 * that spins on pinned memory stands for a program whose running kernel waits for the thread that launches.
 * Configuration is read at a process's first call: CK_FORK=no skips these tests.
 */
#include "test_standin.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* spin(u64 flag): until *flag is not 0.   other(): nothing. */
static const char spin_ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 variable = 1;\n"
    ".visible .entry spin(.param .u64 p)\n{\n"
    " .reg .pred %q; .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
    " ld.param.u64 %d1, [p];\n"
    "again: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %q, %r1, 0; @%q bra again; ret;\n}\n"
    ".visible .entry other()\n{\n ret;\n}\n";

static uint32_t *flags; /* pinned */
static CUfunction spin, other;
static CUstream streams[2];
static CUlibrary library;
static CUkernel kernel;
static CUgraph graph;
static CUcontext ctx;
static char *mapped;
static const char *file;

/* All that the calls below need, made while nothing runs. */
static void setup(void)
{
    CUmodule module;

    alarm(60);
    ok(cuInit(0));
    ok(cuCtxCreate_v2(&ctx, 0, 0));
    ok(cuModuleLoadData(&module, spin_ptx));
    ok(cuModuleGetFunction(&spin, module, "spin"));
    ok(cuModuleGetFunction(&other, module, "other"));
    ok(cuFuncLoad(spin));
    ok(cuLibraryLoadData(&library, spin_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ok(cuLibraryGetKernel(&kernel, library, "other"));
    ok(cuGraphCreate(&graph, 0));
    ok(cuMemHostAlloc((void **)&flags, 4096, 0));
    memset(flags, 0, 4096);
    for (int i = 0; i < 2; i++)
        ok(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void launch_spin(int i)
{
    CUdeviceptr flag = (uintptr_t)&flags[i];
    void *params[] = { &flag };

    ok(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, streams[i], params, NULL));
}

static void set_flag(int i)
{
    __atomic_store_n(&flags[i], 1, __ATOMIC_RELEASE);
}

/* ---- the calls ---- */

static CUmodule module;
static CUfunction function;
static CUdeviceptr p;
static size_t n;
static void *host;
static int value;

#define CALL(name, call)                                                                           \
    static CUresult name(void)                                                                     \
    {                                                                                              \
        return call;                                                                               \
    }
CALL(load_data, cuModuleLoadData(&module, spin_ptx))
CALL(load_data_ex, cuModuleLoadDataEx(&module, spin_ptx, 0, NULL, NULL))
CALL(load_fat_binary, cuModuleLoadFatBinary(&module, spin_ptx))
CALL(load_file, cuModuleLoad(&module, file))
CALL(library_into_context, cuLibraryGetModule(&module, library))
CALL(kernel_into_context, cuKernelGetFunction(&function, kernel))
CALL(variable_into_context, cuLibraryGetGlobal(&p, &n, library, "variable"))
CALL(launch_kernel_first,
     cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, streams[1], NULL, NULL))
CALL(launch_function_first, cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, streams[1], NULL, NULL))
CALL(load_function, cuFuncLoad(other))
CALL(ask_function, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, other))
CALL(ask_params, cuFuncGetParamInfo(other, 0, &n, NULL) == CUDA_ERROR_INVALID_VALUE
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_UNKNOWN)
CALL(ask_kernel_params, cuKernelGetParamInfo(kernel, 0, &n, NULL) == CUDA_ERROR_INVALID_VALUE
                            ? CUDA_SUCCESS
                            : CUDA_ERROR_UNKNOWN)
CALL(alloc, cuMemAlloc_v2(&p, 64))
CALL(alloc_pitch, cuMemAllocPitch_v2(&p, &n, 64, 2, 4))
CALL(alloc_managed, cuMemAllocManaged(&p, 64, CU_MEM_ATTACH_GLOBAL))
CALL(alloc_host, cuMemAllocHost_v2(&host, 64))
CALL(host_alloc, cuMemHostAlloc(&host, 64, 0))
CALL(host_register, cuMemHostRegister_v2(mapped, 4096, 0))
/* and those that never wait */
CALL(library_alone, cuLibraryLoadData(&library, spin_ptx, NULL, NULL, 0, NULL, NULL, 0))
CALL(launch_again, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, streams[1],
                                  (void *[]){ &(CUdeviceptr){ (uintptr_t)&flags[8] } }, NULL))
CALL(alloc_async, cuMemAllocAsync(&p, 64, streams[1]))
CALL(make_stream, cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING))
CALL(make_event, cuEventCreate(&(CUevent){ 0 }, 0))
CALL(ask_range, cuMemGetAddressRange_v2(NULL, &n, (uintptr_t)flags))
CALL(instantiate, cuGraphInstantiateWithFlags(&(CUgraphExec){ 0 }, graph, 0))

static CUresult (*const waiting[])(void) = {
    load_data,
    load_data_ex,
    load_fat_binary,
    load_file,
    library_into_context,
    kernel_into_context,
    variable_into_context,
    launch_kernel_first,
    launch_function_first,
    load_function,
    ask_function,
    ask_params,
    ask_kernel_params,
    alloc,
    alloc_pitch,
    alloc_managed,
    alloc_host,
    host_alloc,
    host_register,
};
enum { N_WAITING = sizeof(waiting) / sizeof(waiting[0]) };
static CUresult (*const going_on[])(void) = { library_alone, launch_again, alloc_async, make_stream,
                                              make_event,    ask_range,    instantiate };
enum { N_GOING_ON = sizeof(going_on) / sizeof(going_on[0]) };

/* ---- a call on a thread of its own ---- */

struct call {
    CUresult (*fn)(void);
    pthread_t thread;
    atomic_int returned; /* 1 + result */
};

static void *call_main(void *data)
{
    struct call *call = data;

    ok(cuCtxSetCurrent(ctx));
    atomic_store(&call->returned, 1 + (int)call->fn());
    return NULL;
}

static void call_start(struct call *call, CUresult (*fn)(void))
{
    *call = (struct call){ .fn = fn };
    ck_assert_int_eq(pthread_create(&call->thread, NULL, call_main, call), 0);
}

/* Return: whether it returns within @ms. */
static bool call_returns(struct call *call, int ms)
{
    for (int i = 0; i < ms && !atomic_load(&call->returned); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return atomic_load(&call->returned);
}

static void call_end(struct call *call)
{
    ck_assert(call_returns(call, 20000));
    pthread_join(call->thread, NULL);
    ck_assert_int_eq(atomic_load(&call->returned), 1 + CUDA_SUCCESS);
}

static void make_file(void)
{
    static char path[] = "/tmp/standin-spin-XXXXXX";
    int fd = mkstemp(path);

    ck_assert_int_eq(write(fd, spin_ptx, sizeof(spin_ptx) - 1), sizeof(spin_ptx) - 1);
    close(fd);
    file = path;
}

enum { SOON_MS = 80 };

START_TEST(loading_and_allocating_wait_for_what_is_queued)
{
    struct call call;

    make_file();
    setup();
    launch_spin(0);
    call_start(&call, waiting[_i]);
    ck_assert_msg(!call_returns(&call, SOON_MS), "call %d", _i);
    set_flag(0);
    call_end(&call);
    unlink(file);
}
END_TEST

START_TEST(they_do_not_where_told)
{
    struct call call;

    make_file();
    setenv("DMI_STANDIN_LOAD_WAITS", "0", 1);
    setup();
    launch_spin(0);
    call_start(&call, waiting[_i]);
    call_end(&call);
    set_flag(0);
    unlink(file);
}
END_TEST

START_TEST(other_calls_do_not_wait)
{
    struct call call;

    setup();
    launch_spin(0);
    call_start(&call, going_on[_i]);
    call_end(&call);
    set_flag(0);
    flags[8] = 1;
}
END_TEST

START_TEST(eager_loading_leaves_nothing_to_the_first_use)
{
    CUfunctionLoadingState state;
    CUmoduleLoadingMode mode;
    struct call call;

    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setup();
    ok(cuModuleGetLoadingMode(&mode));
    ck_assert_int_eq(mode, CU_MODULE_EAGER_LOADING);
    ok(cuFuncIsLoaded(&state, other));
    ck_assert_int_eq(state, CU_FUNCTION_LOADING_STATE_LOADED);
    launch_spin(0);
    call_start(&call, launch_function_first);
    call_end(&call);
    set_flag(0);
}
END_TEST

START_TEST(lazy_loading_says_what_is_loaded)
{
    CUfunctionLoadingState state;
    CUmoduleLoadingMode mode;

    unsetenv("CUDA_MODULE_LOADING");
    setup();
    ok(cuModuleGetLoadingMode(&mode));
    ck_assert_int_eq(mode, CU_MODULE_LAZY_LOADING);
    ok(cuFuncIsLoaded(&state, other));
    ck_assert_int_eq(state, CU_FUNCTION_LOADING_STATE_UNLOADED);
    ok(launch_function_first());
    ok(cuFuncIsLoaded(&state, other));
    ck_assert_int_eq(state, CU_FUNCTION_LOADING_STATE_LOADED);
}
END_TEST

/* Who comes second waits for the lock, and only then for what is queued by then. */
START_TEST(others_wait_for_the_lock_itself)
{
    struct call first, second;

    setup();
    launch_spin(0);
    call_start(&first, load_data);
    ck_assert(!call_returns(&first, SOON_MS));
    call_start(&second, alloc);
    ck_assert(!call_returns(&second, SOON_MS));
    launch_spin(1);
    set_flag(0);
    call_end(&first);
    ck_assert(!call_returns(&second, SOON_MS));
    set_flag(1);
    call_end(&second);
}
END_TEST

static CUfunction got[2];
CALL(first_function, cuKernelGetFunction(&got[0], kernel))
CALL(second_function, cuKernelGetFunction(&got[1], kernel))

START_TEST(a_library_comes_into_a_context_once)
{
    struct call first, second;

    setup();
    launch_spin(0);
    call_start(&first, first_function);
    call_start(&second, second_function);
    ck_assert(!call_returns(&first, SOON_MS) && !call_returns(&second, 1));
    set_flag(0);
    call_end(&first);
    call_end(&second);
    ck_assert_ptr_eq(got[0], got[1]);
}
END_TEST

START_TEST(another_context_is_another_lock)
{
    CUcontext own = ctx;
    struct call call;

    setup();
    launch_spin(0);
    own = ctx;
    ok(cuCtxCreate_v2(&ctx, 0, 0)); /* the call's */
    call_start(&call, load_data);
    call_end(&call);
    set_flag(0);
    ok(cuCtxDestroy_v2(ctx));
    ctx = own;
}
END_TEST

/* What a launch path that loads a module does to a program whose kernel waits for it: it never returns. */
START_TEST(loading_in_the_thread_that_a_kernel_waits_for_hangs)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        setup();
        launch_spin(0);
        load_data();
        set_flag(0); /* the launching thread would come here */
        _exit(0);
    }
    for (int i = 0; i < 15; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loads");
    TCase *loads = tcase_create("loads");

    tcase_set_timeout(loads, 60);
    tcase_add_loop_test(loads, loading_and_allocating_wait_for_what_is_queued, 0, N_WAITING);
    tcase_add_loop_test(loads, they_do_not_where_told, 0, N_WAITING);
    tcase_add_loop_test(loads, other_calls_do_not_wait, 0, N_GOING_ON);
    tcase_add_test(loads, eager_loading_leaves_nothing_to_the_first_use);
    tcase_add_test(loads, lazy_loading_says_what_is_loaded);
    tcase_add_test(loads, others_wait_for_the_lock_itself);
    tcase_add_test(loads, a_library_comes_into_a_context_once);
    tcase_add_test(loads, another_context_is_another_lock);
    tcase_add_test(loads, loading_in_the_thread_that_a_kernel_waits_for_hangs);
    suite_add_tcase(suite, loads);
    return test_run(suite);
}
