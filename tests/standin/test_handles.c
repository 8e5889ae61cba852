/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles that have ended, or are of another kind, in each mode of DMI_STANDIN_HANDLES; what arrays hold
 * past their count, and what calls that fail leave alone. The mode is read at a process's first call, so
 * each misuse happens in a process of its own: CK_FORK=no skips them.
 */
#include "test_standin.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define POISON ((void *)(uintptr_t)0xdead0baddead0bd0ull)

static char said[512];
static const char *log_path; /* of the process apart */

/* Return: the wait status of a process in which @fn ran with a context and the tests' module. */
static int apart(CUresult (*fn)(void), const char *mode, CUresult expected)
{
    int pipes[2], status;
    ssize_t n;
    pid_t pid;

    ck_assert_int_eq(pipe(pipes), 0);
    pid = fork();
    if (pid == 0) {
        CUresult res;

        dup2(pipes[1], STDERR_FILENO);
        setenv("DMI_STANDIN_HANDLES", mode, 1);
        if (log_path)
            setenv("DMI_STANDIN_LOG", log_path, 1);
        alarm(60);
        test_setup_module();
        res = fn();
        if (res != expected)
            dprintf(STDERR_FILENO, "result %d", (int)res);
        _exit(res == expected ? 0 : 3);
    }
    close(pipes[1]);
    n = read(pipes[0], said, sizeof(said) - 1);
    said[n > 0 ? n : 0] = 0;
    close(pipes[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

/* ---- handles to misuse ---- */

static CUmodule ended_module(void)
{
    CUmodule module;

    ok(cuModuleLoadData(&module, test_ptx));
    ok(cuModuleUnload(module));
    return module;
}

static CUfunction ended_function(void)
{
    CUfunction add = test_function("add");

    ok(cuModuleUnload(test_module));
    return add;
}

static CUlibrary a_library(void)
{
    CUlibrary library;

    ok(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

static CUkernel a_kernel(void)
{
    CUkernel kernel;

    ok(cuLibraryGetKernel(&kernel, a_library(), "bump"));
    return kernel;
}

static CUlibrary ended_library(void)
{
    CUlibrary library = a_library();

    ok(cuLibraryUnload(library));
    return library;
}

static CUkernel ended_kernel(void)
{
    CUlibrary library = a_library();
    CUkernel kernel;

    ok(cuLibraryGetKernel(&kernel, library, "bump"));
    ok(cuLibraryUnload(library));
    return kernel;
}

static CUstream a_stream(void)
{
    CUstream stream;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUstream ended_stream(void)
{
    CUstream stream = a_stream();

    ok(cuStreamDestroy_v2(stream));
    return stream;
}

static CUevent an_event(void)
{
    CUevent event;

    ok(cuEventCreate(&event, 0));
    return event;
}

static CUevent ended_event(void)
{
    CUevent event = an_event();

    ok(cuEventDestroy_v2(event));
    return event;
}

static CUcontext ended_context(void)
{
    CUcontext ctx;

    ok(cuCtxCreate_v2(&ctx, 0, 0));
    ok(cuCtxDestroy_v2(ctx));
    return ctx;
}

static CUgraph a_graph(CUgraphNode *node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 params = { .func = test_function("bump"),
                                          .gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1 };
    CUgraphNode made;
    CUgraph graph;

    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddKernelNode_v2(node ? node : &made, graph, NULL, 0, &params));
    return graph;
}

static CUgraph ended_graph(void)
{
    CUgraph graph = a_graph(NULL);

    ok(cuGraphDestroy(graph));
    return graph;
}

static CUgraphNode ended_node(void)
{
    CUgraphNode node;
    CUgraph graph = a_graph(&node);

    ok(cuGraphDestroy(graph));
    return node;
}

static CUgraphExec exec_of(CUgraph graph)
{
    CUgraphExec exec;

    ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static CUgraphExec ended_exec(void)
{
    CUgraphExec exec = exec_of(a_graph(NULL));

    ok(cuGraphExecDestroy(exec));
    return exec;
}

static CUuserObject ended_user_object(void)
{
    CUuserObject object;

    ok(cuUserObjectCreate(&object, NULL, test_nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok(cuUserObjectRelease(object, 1));
    return object;
}

static CUresult launch(void *function)
{
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static CUfunction function;
static CUkernel kernel;
static CUgraphExec exec;
static CUgraph graph;
static CUgraphNode node, nodes[8];
static CUmodule module;
static CUcontext ctx;
static const char *name;
static size_t n, offset;
static int value;

#define MISUSE(name, call)                                                                         \
    static CUresult name(void)                                                                     \
    {                                                                                              \
        return call;                                                                               \
    }
MISUSE(get_function_of_ended_module, cuModuleGetFunction(&function, ended_module(), "add"))
MISUSE(unload_ended_module, cuModuleUnload(ended_module()))
MISUSE(get_function_of_library, cuModuleGetFunction(&function, (CUmodule)a_library(), "add"))
MISUSE(get_kernel_of_module, cuLibraryGetKernel(&kernel, (CUlibrary)test_module, "add"))
MISUSE(get_kernel_of_ended_library, cuLibraryGetKernel(&kernel, ended_library(), "add"))
MISUSE(unload_ended_library, cuLibraryUnload(ended_library()))
MISUSE(launch_ended_function, launch(ended_function()))
MISUSE(launch_ended_kernel, launch(ended_kernel()))
MISUSE(launch_module, launch(test_module))
MISUSE(function_of_function, cuKernelGetFunction(&function, (CUkernel)test_function("add")))
MISUSE(kernel_name_of_function, cuKernelGetName(&name, (CUkernel)test_function("add")))
MISUSE(name_of_kernel, cuFuncGetName(&name, (CUfunction)a_kernel()))
MISUSE(params_of_kernel, cuFuncGetParamInfo((CUfunction)a_kernel(), 0, &offset, &n))
MISUSE(params_of_function, cuKernelGetParamInfo((CUkernel)test_function("add"), 0, &offset, &n))
MISUSE(attribute_of_module,
       cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)test_module))
MISUSE(make_ended_context_current, cuCtxSetCurrent(ended_context()))
MISUSE(push_ended_context, cuCtxPushCurrent_v2(ended_context()))
MISUSE(destroy_ended_context, cuCtxDestroy_v2(ended_context()))
MISUSE(query_ended_stream, cuStreamQuery(ended_stream()))
MISUSE(destroy_ended_stream, cuStreamDestroy_v2(ended_stream()))
MISUSE(wait_for_event_as_stream, cuStreamSynchronize((CUstream)an_event()))
MISUSE(record_ended_event, cuEventRecord(ended_event(), NULL))
MISUSE(destroy_ended_event, cuEventDestroy_v2(ended_event()))
MISUSE(instantiate_ended_graph, cuGraphInstantiateWithFlags(&exec, ended_graph(), 0))
MISUSE(destroy_ended_graph, cuGraphDestroy(ended_graph()))
MISUSE(instantiate_exec, cuGraphInstantiateWithFlags(&exec, (CUgraph)exec_of(a_graph(NULL)), 0))
MISUSE(launch_graph, cuGraphLaunch((CUgraphExec)a_graph(NULL), NULL))
MISUSE(launch_ended_exec, cuGraphLaunch(ended_exec(), NULL))
MISUSE(destroy_ended_exec, cuGraphExecDestroy(ended_exec()))
MISUSE(depend_on_ended_node,
       (graph = a_graph(NULL), node = ended_node(), cuGraphAddEmptyNode(nodes, graph, &node, 1)))
MISUSE(retain_ended_user_object, cuUserObjectRetain(ended_user_object(), 1))
MISUSE(query_a_number, cuEventQuery((CUevent)(uintptr_t)12345))
MISUSE(query_an_unmapped_address, cuEventQuery((CUevent)(uintptr_t)0x100000))

static CUresult switch_by_node_of_ended_template(void)
{
    graph = a_graph(&node);
    exec = exec_of(graph);
    ok(cuGraphDestroy(graph));
    return cuGraphNodeSetEnabled(exec, node, 0);
}

static CUresult launch_exec_of_ended_function(void)
{
    exec = exec_of(a_graph(NULL));
    ok(cuModuleUnload(test_module));
    return cuGraphLaunch(exec, NULL);
}

static CUresult instantiate_graph_of_ended_function(void)
{
    graph = a_graph(NULL);
    ok(cuModuleUnload(test_module));
    return cuGraphInstantiateWithFlags(&exec, graph, 0);
}

static CUresult launch_exec_of_ended_event(void)
{
    CUevent event = an_event();

    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
    exec = exec_of(graph);
    ok(cuEventDestroy_v2(event));
    return cuGraphLaunch(exec, NULL);
}

static CUresult query_what_an_array_holds_past_its_count(void)
{
    CUgraphNodeType type;

    n = 2;
    ok(cuGraphGetNodes(a_graph(NULL), nodes, &n));
    ck_assert_uint_eq(n, 1);
    return cuGraphNodeGetType(nodes[1], &type);
}

static const struct misuse {
    CUresult (*fn)(void);
    const char *said; /* the line on stderr: call, what was wanted, what was given */
    CUresult lenient;
} misuses[] = {
#define ROW(fn, call, wanted, given, lenient)                                                      \
    {                                                                                              \
        fn, "stand-in driver: " call ": %p is no " wanted " but " given "\n", CUDA_ERROR_##lenient \
    }
    ROW(get_function_of_ended_module, "cuModuleGetFunction", "module", "an ended module",
        INVALID_HANDLE),
    ROW(unload_ended_module, "cuModuleUnload", "module", "an ended module", INVALID_HANDLE),
    ROW(get_function_of_library, "cuModuleGetFunction", "module", "a library", INVALID_HANDLE),
    ROW(get_kernel_of_module, "cuLibraryGetKernel", "library", "a module", INVALID_HANDLE),
    ROW(get_kernel_of_ended_library, "cuLibraryGetKernel", "library", "an ended library",
        INVALID_HANDLE),
    ROW(unload_ended_library, "cuLibraryUnload", "library", "an ended library", INVALID_HANDLE),
    ROW(launch_ended_function, "cuLaunchKernel", "function", "an ended function", INVALID_HANDLE),
    ROW(launch_ended_kernel, "cuLaunchKernel", "function", "an ended kernel", INVALID_HANDLE),
    ROW(launch_module, "cuLaunchKernel", "function", "a module", INVALID_HANDLE),
    ROW(function_of_function, "cuKernelGetFunction", "kernel", "a function", INVALID_HANDLE),
    ROW(kernel_name_of_function, "cuKernelGetName", "kernel", "a function", INVALID_HANDLE),
    ROW(name_of_kernel, "cuFuncGetName", "function", "a kernel", INVALID_HANDLE),
    ROW(params_of_kernel, "cuFuncGetParamInfo", "function", "a kernel", INVALID_HANDLE),
    ROW(params_of_function, "cuKernelGetParamInfo", "kernel", "a function", INVALID_HANDLE),
    ROW(attribute_of_module, "cuFuncGetAttribute", "function", "a module", INVALID_HANDLE),
    ROW(make_ended_context_current, "cuCtxSetCurrent", "context", "an ended context",
        INVALID_CONTEXT),
    ROW(push_ended_context, "cuCtxPushCurrent_v2", "context", "an ended context", INVALID_CONTEXT),
    ROW(destroy_ended_context, "cuCtxDestroy_v2", "context", "an ended context", INVALID_CONTEXT),
    ROW(query_ended_stream, "cuStreamQuery", "stream", "an ended stream", INVALID_HANDLE),
    ROW(destroy_ended_stream, "cuStreamDestroy_v2", "stream", "an ended stream", INVALID_HANDLE),
    ROW(wait_for_event_as_stream, "cuStreamSynchronize", "stream", "an event", INVALID_HANDLE),
    ROW(record_ended_event, "cuEventRecord", "event", "an ended event", INVALID_HANDLE),
    ROW(destroy_ended_event, "cuEventDestroy_v2", "event", "an ended event", INVALID_HANDLE),
    ROW(instantiate_ended_graph, "cuGraphInstantiateWithFlags", "graph", "an ended graph",
        INVALID_VALUE),
    ROW(destroy_ended_graph, "cuGraphDestroy", "graph", "an ended graph", INVALID_VALUE),
    ROW(instantiate_exec, "cuGraphInstantiateWithFlags", "graph", "a graph exec", INVALID_VALUE),
    ROW(launch_graph, "cuGraphLaunch", "graph exec", "a graph", INVALID_VALUE),
    ROW(launch_ended_exec, "cuGraphLaunch", "graph exec", "an ended graph exec", INVALID_VALUE),
    ROW(destroy_ended_exec, "cuGraphExecDestroy", "graph exec", "an ended graph exec",
        INVALID_VALUE),
    ROW(depend_on_ended_node, "cuGraphAddEmptyNode", "graph node", "an ended graph node",
        INVALID_VALUE),
    ROW(retain_ended_user_object, "cuUserObjectRetain", "user object", "an ended user object",
        INVALID_VALUE),
    ROW(query_a_number, "cuEventQuery", "event", "a small or odd number", INVALID_HANDLE),
    ROW(switch_by_node_of_ended_template, "cuGraphNodeSetEnabled", "graph node",
        "an ended graph node", INVALID_VALUE),
    ROW(launch_exec_of_ended_function, "cuGraphLaunch", "function", "an ended function",
        INVALID_VALUE),
    ROW(instantiate_graph_of_ended_function, "cuGraphInstantiateWithFlags", "function",
        "an ended function", INVALID_VALUE),
    ROW(launch_exec_of_ended_event, "cuGraphLaunch", "event", "an ended event", INVALID_VALUE),
    ROW(query_what_an_array_holds_past_its_count, "cuGraphNodeGetType", "graph node",
        "nothing that can be read", INVALID_VALUE),
};

/* Without the address. */
static bool says(const char *wanted)
{
    const char *mark = strstr(wanted, "%p");
    const char *rest = strchr(said + (mark - wanted), ' ');

    return strncmp(said, wanted, (size_t)(mark - wanted)) == 0 && rest &&
           strcmp(rest, mark + 2) == 0;
}

static void dies(const struct misuse *misuse, const char *mode)
{
    int status = apart(misuse->fn, mode, CUDA_SUCCESS);

    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "%s: status %x, %s",
                  misuse->said, status, said);
    ck_assert_msg(says(misuse->said), "%s instead of %s", said, misuse->said);
}

START_TEST(a_handle_that_is_none_ends_the_process)
{
    dies(&misuses[_i], "strict");
}
END_TEST

START_TEST(the_log_says_what_ended_the_process)
{
    char path[] = "/tmp/standin-handles-XXXXXX", text[4096];
    int fd = mkstemp(path);
    ssize_t got;

    log_path = path;
    apart(launch_ended_exec, "strict", CUDA_SUCCESS);
    log_path = NULL;
    ck_assert_int_gt(lseek(fd, -200, SEEK_END), 0);
    got = read(fd, text, sizeof(text) - 1);
    close(fd);
    unlink(path);
    ck_assert_int_gt(got, 0);
    text[got] = 0;
    ck_assert_ptr_nonnull(strstr(text, "\"ev\":\"fault\""));
    ck_assert_ptr_nonnull(strstr(text, "\"name\":\"cuGraphLaunch\",\"handle\":"));
    ck_assert_ptr_nonnull(
        strstr(text, "\"wanted\":\"graph exec\",\"is\":\"an ended graph exec\"}\n"));
}
END_TEST

START_TEST(so_it_does_where_handles_come_back_at_once)
{
    dies(&misuses[_i], "reuse");
}
END_TEST

START_TEST(a_lenient_driver_returns_the_error)
{
    int status = apart(misuses[_i].fn, "lenient", misuses[_i].lenient);

    ck_assert_msg(status == 0, "%s: status %x, %s", misuses[_i].said, status, said);
}
END_TEST

START_TEST(an_address_that_is_not_mapped_dies_in_every_mode)
{
    static const char *const modes[] = { "strict", "reuse", "lenient" };
    int status = apart(query_an_unmapped_address, modes[_i], CUDA_SUCCESS);

    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_msg(says("stand-in driver: cuEventQuery: %p is no event but nothing that can be "
                       "read\n"),
                  "%s", said);
}
END_TEST

/* ---- what stays an error ---- */

START_TEST(null_is_an_error_of_the_call)
{
    CUstreamCaptureStatus status;
    CUgraphNodeType type;

    fails(cuModuleGetFunction(&function, NULL, "add"), CUDA_ERROR_INVALID_HANDLE);
    fails(cuModuleUnload(NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuLibraryUnload(NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuLibraryGetKernel(&kernel, NULL, "add"), CUDA_ERROR_INVALID_HANDLE);
    fails(cuKernelGetFunction(&function, NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuFuncGetName(&name, NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(launch(NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuCtxPushCurrent_v2(NULL), CUDA_ERROR_INVALID_CONTEXT);
    fails(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_CONTEXT);
    fails(cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuEventQuery(NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuEventDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
    fails(cuGraphDestroy(NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphNodeGetType(NULL, &type), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphLaunch(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphExecDestroy(NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuUserObjectRelease(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamIsCapturing(NULL, &status)); /* the default stream */
}
END_TEST

START_TEST(what_the_driver_checks_is_an_error)
{
    CUmodule of_library;
    CUdeviceptr p = test_zeros(16);
    CUcontext other;

    /* reported of a real driver (FACTS) */
    fails(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)a_kernel()),
          CUDA_ERROR_INVALID_HANDLE);
    /* cuda.h, cuModuleUnload() */
    ok(cuLibraryGetModule(&of_library, a_library()));
    fails(cuModuleUnload(of_library), CUDA_ERROR_NOT_PERMITTED);
    fails(cuStreamDestroy_v2(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_HANDLE);
    fails(cuStreamDestroy_v2(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);
    ok(cuMemFree_v2(p));
    fails(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    /* a context that others still have current */
    ok(cuCtxCreate_v2(&other, 0, 0));
    ok(cuCtxPushCurrent_v2(other));
    ok(cuCtxDestroy_v2(other));
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

/* ---- what comes back ---- */

#define SAME(make, end, type)                                                                      \
    static CUresult same_##type(void)                                                              \
    {                                                                                              \
        type a = (make), b;                                                                        \
        ok(end(a));                                                                                \
        b = (make);                                                                                \
        return a == b ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;                                       \
    }
SAME(a_library(), cuLibraryUnload, CUlibrary)
SAME(a_stream(), cuStreamDestroy_v2, CUstream)
SAME(an_event(), cuEventDestroy_v2, CUevent)
SAME(a_graph(NULL), cuGraphDestroy, CUgraph)
SAME(exec_of(a_graph(NULL)), cuGraphExecDestroy, CUgraphExec)
SAME((cuModuleLoadData(&module, test_ptx), module), cuModuleUnload, CUmodule)
SAME((cuCtxCreate_v2(&ctx, 0, 0), ctx), cuCtxDestroy_v2, CUcontext)

static CUresult same_function(void)
{
    CUfunction first;

    first = ended_function();
    ok(cuModuleLoadData(&test_module, test_ptx));
    return test_function("poke") == first ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult same_node(void)
{
    CUgraphNode first = ended_node(), second;

    a_graph(&second);
    return first == second ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The address freed last, not the lowest one that is free. */
static CUresult same_address(void)
{
    CUdeviceptr low, last, end, again;

    ok(cuMemAlloc_v2(&low, 1 << 16));
    ok(cuMemAlloc_v2(&last, 1 << 16));
    ok(cuMemAlloc_v2(&end, 1 << 16));
    ok(cuMemFree_v2(low));
    ok(cuMemFree_v2(last));
    ok(cuMemAlloc_v2(&again, 1 << 12));
    return again == last ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult (*const same[])(void) = { same_CUlibrary, same_CUstream,    same_CUevent,
                                          same_CUgraph,   same_CUgraphExec, same_CUmodule,
                                          same_CUcontext, same_function,    same_node,
                                          same_address };

START_TEST(handles_and_addresses_come_back_at_once_where_told)
{
    int status = apart(same[_i], "reuse", CUDA_SUCCESS);

    ck_assert_msg(status == 0, "%d: status %x, %s", _i, status, said);
    status = apart(same[_i], "strict", CUDA_ERROR_NOT_FOUND);
    ck_assert_msg(status == 0, "%d, strict: status %x, %s", _i, status, said);
}
END_TEST

/* ---- arrays and what failing calls leave alone ---- */

START_TEST(arrays_hold_poison_past_their_count)
{
    CUgraphNode from[4], to[4], a, b;
    CUgraphEdgeData data[4];
    unsigned char poison[sizeof(data[0])];
    CUfunction functions[8];
    CUkernel kernels[8];
    unsigned count;

    memset(poison, 0xdb, sizeof(poison));
    graph = a_graph(&a);
    ok(cuGraphAddEmptyNode(&b, graph, &a, 1));
    n = 4;
    ok(cuGraphGetNodes(graph, nodes, &n));
    ck_assert(n == 2 && nodes[0] == a && nodes[2] == POISON && nodes[3] == POISON);
    n = 4;
    ok(cuGraphGetRootNodes(graph, nodes, &n));
    ck_assert(n == 1 && nodes[0] == a && nodes[1] == POISON && nodes[3] == POISON);
    n = 4;
    ok((cuGraphGetEdges)(graph, from, to, &n));
    ck_assert(n == 1 && from[0] == a && to[0] == b && from[1] == POISON && to[3] == POISON);
    n = 4;
    ok(cuGraphGetEdges_v2(graph, from, to, data, &n));
    ck_assert(n == 1 && from[1] == POISON && memcmp(&data[1], poison, sizeof(poison)) == 0);
    n = 4;
    ok(cuGraphNodeGetDependencies_v2(b, nodes, data, &n));
    ck_assert(n == 1 && nodes[0] == a && nodes[1] == POISON && nodes[3] == POISON);
    ck_assert_mem_eq(&data[3], poison, sizeof(poison));
    n = 4;
    ok((cuGraphNodeGetDependencies)(a, nodes, &n));
    ck_assert(n == 0 && nodes[0] == POISON);
    n = 4;
    ok((cuGraphNodeGetDependentNodes)(a, nodes, &n));
    ck_assert(n == 1 && nodes[0] == b && nodes[1] == POISON);
    ok(cuModuleGetFunctionCount(&count, test_module));
    ok(cuModuleEnumerateFunctions(functions, 8, test_module));
    ck_assert(count == 4 && functions[3] != POISON && functions[4] == POISON);
    ok(cuLibraryEnumerateKernels(kernels, 8, a_library()));
    ck_assert(kernels[3] != POISON && kernels[4] == POISON && kernels[7] == POISON);
}
END_TEST

START_TEST(dependencies_of_a_capture_are_shown_until_the_next_call)
{
    CUstream stream = a_stream();
    CUstreamCaptureStatus status;
    const CUgraphNode *first, *second;
    const CUgraphEdgeData *data;

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuLaunchKernel(test_function("bump"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    ok(cuStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, &first, &data, &n));
    ck_assert(n == 1 && first[0] != POISON && first[1] == POISON);
    node = first[0];
    ok(cuGraphAddEmptyNode(nodes, graph, first,
                           n)); /* the array may be given to calls on the graph */
    ck_assert_ptr_eq(first[0], node);
    ok(cuLaunchKernel(test_function("bump"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    ck_assert_ptr_eq(first[0], POISON);
    ok(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, &second, &n));
    ck_assert(n == 1 && second[0] != node && second[0] != POISON);
}
END_TEST

static CUresult null_past_the_count(void)
{
    n = 3;
    ok(cuGraphGetNodes(a_graph(NULL), nodes, &n));
    return n == 1 && nodes[0] && !nodes[1] && !nodes[2] ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

START_TEST(a_lenient_driver_keeps_the_promise_of_null)
{
    ck_assert_int_eq(apart(null_past_the_count, "lenient", CUDA_SUCCESS), 0);
}
END_TEST

START_TEST(what_fails_leaves_its_results_alone)
{
    CUgraphNode a, b, from[2] = { POISON, POISON }, to[2] = { POISON, POISON };
    CUgraphEdgeData port = { .from_port = 1, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC };
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {
        .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } },
        .bytesize = 64,
        .dptr = 7
    };
    CUstreamCaptureStatus status = (CUstreamCaptureStatus)77;
    CUstream stream = a_stream();
    CUdeviceptr p = 7;
    size_t pitch = 7, total;

    ok(cuMemGetInfo_v2(&n, &total));
    fails(cuMemAllocPitch_v2(&p, &pitch, total, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert(p == 7 && pitch == 7);
    graph = a_graph(&a);
    fails(cuGraphAddMemAllocNode(&b, graph, NULL, 1, &alloc), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(alloc.dptr, 7);
    b = a;
    ok(cuGraphGetNodes(a_graph(&a), NULL, &n));
    /* an edge that the older queries cannot show */
    graph = a_graph(&a);
    ok(cuGraphAddKernelNode_v2(&b, graph, NULL, 0,
                               &(CUDA_KERNEL_NODE_PARAMS_v2){ test_function("bump"), 1, 1, 1, 1, 1,
                                                              1, 0, NULL, NULL, NULL, NULL }));
    ok(cuGraphAddDependencies_v2(graph, &a, &b, &port, 1));
    n = 2;
    fails((cuGraphGetEdges)(graph, from, to, &n), CUDA_ERROR_LOSSY_QUERY);
    ck_assert(n == 2 && from[0] == POISON && to[1] == POISON);
    fails((cuGraphNodeGetDependencies)(b, from, &n), CUDA_ERROR_LOSSY_QUERY);
    ck_assert(n == 2 && from[0] == POISON && from[1] == POISON);
    ok(cuStreamBeginCaptureToGraph(stream, graph, &b, &port, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    fails(
        cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, (const CUgraphNode **)&from[0], &n),
        CUDA_ERROR_LOSSY_QUERY);
    ck_assert(status == (CUstreamCaptureStatus)77 && from[0] == POISON && n == 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handles");
    TCase *bare = tcase_create("bare"), *living = tcase_create("living");

    tcase_set_timeout(bare, 60);
    tcase_add_loop_test(bare, a_handle_that_is_none_ends_the_process, 0,
                        sizeof(misuses) / sizeof(misuses[0]));
    tcase_add_test(bare, the_log_says_what_ended_the_process);
    tcase_add_loop_test(bare, so_it_does_where_handles_come_back_at_once, 0,
                        sizeof(misuses) / sizeof(misuses[0]));
    tcase_add_loop_test(bare, a_lenient_driver_returns_the_error, 0,
                        sizeof(misuses) / sizeof(misuses[0]));
    tcase_add_loop_test(bare, an_address_that_is_not_mapped_dies_in_every_mode, 0, 3);
    tcase_add_loop_test(bare, handles_and_addresses_come_back_at_once_where_told, 0,
                        sizeof(same) / sizeof(same[0]));
    tcase_add_test(bare, a_lenient_driver_keeps_the_promise_of_null);
    suite_add_tcase(suite, bare);

    tcase_add_checked_fixture(living, test_setup_module, NULL);
    tcase_add_test(living, null_is_an_error_of_the_call);
    tcase_add_test(living, what_the_driver_checks_is_an_error);
    tcase_add_test(living, arrays_hold_poison_past_their_count);
    tcase_add_test(living, dependencies_of_a_capture_are_shown_until_the_next_call);
    tcase_add_test(living, what_fails_leaves_its_results_alone);
    suite_add_tcase(suite, living);
    return test_run(suite);
}
