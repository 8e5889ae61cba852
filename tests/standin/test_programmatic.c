/* SPDX-License-Identifier: Apache-2.0 */
/* Programmatic dependent launch: what edges captured launches get, and how early dependents start under a delay seed. */
#include "test_standin.h"

#include <dlfcn.h>
#include <stdbool.h>

/*
 * first(u64 p): lets dependents start, then *p = 1.      silent(u64 p): *p = 1.
 * second(u64 p, u64 seen): seen[0] = *p, waits for what it depends on, seen[1] = *p.
 * hasty(u64 p, u64 seen): seen[0] = *p.
 */
#define LOOK(at) " ld.volatile.global.u32 %r1, [%d1]; st.volatile.global.u32 [%d2+" #at "], %r1;\n"
#define TWO                                                                                        \
    " .reg .b32 %r<2>; .reg .b64 %d<3>;\n"                                                         \
    " ld.param.u64 %d1, [p]; ld.param.u64 %d2, [seen];\n"
static const char ptx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry first(.param .u64 p)\n{\n .reg .b64 %d<2>;\n ld.param.u64 %d1, [p];\n"
    " griddepcontrol.launch_dependents; st.volatile.global.u32 [%d1], 1; ret;\n}\n"
    ".visible .entry silent(.param .u64 p)\n{\n .reg .b64 %d<2>;\n ld.param.u64 %d1, [p];\n"
    " st.volatile.global.u32 [%d1], 1; ret;\n}\n"
    ".visible .entry second(.param .u64 p, .param .u64 seen)\n{\n" TWO
        LOOK(0) " griddepcontrol.wait;\n" LOOK(
            4) " ret;\n}\n"
               ".visible .entry hasty(.param .u64 p, .param .u64 seen)\n{\n" TWO LOOK(
                   0) " ret;\n}\n";

#define N_SEEDS 40

static CUmodule module;
static CUdeviceptr p, seen;
static CUstream stream;
static void (*set_seed)(unsigned long long);

static void setup(const char *seed)
{
    setenv("DMI_STANDIN_DELAY_SEED", seed, 1);
    setenv("DMI_STANDIN_SM", "90", 1);
    test_setup();
    ok(cuModuleLoadData(&module, ptx));
    p = test_zeros(4);
    seen = test_zeros(16);
    stream = test_stream();
    *(void **)&set_seed = dlsym(RTLD_DEFAULT, "standin_seed");
}

static void launch(const char *name, CUdeviceptr to, CUstream on, CUlaunchAttribute *attr)
{
    CUlaunchConfig config = { .gridDimX = 1,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = 1,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = on,
                              .attrs = attr,
                              .numAttrs = attr != NULL };
    void *params[] = { &p, &to };
    CUfunction f;

    ok(cuModuleGetFunction(&f, module, name));
    ok(cuLaunchKernelEx(&config, f, params, NULL));
}

static CUlaunchAttribute serialized = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                        .value.programmaticStreamSerializationAllowed = 1 };

static CUevent event_new(unsigned flags)
{
    CUevent event;

    ok(cuEventCreate(&event, flags));
    return event;
}

static CUlaunchAttribute programmatic_event(CUevent event)
{
    return (CUlaunchAttribute){ .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
                                .value.programmaticEvent = { .event = event } };
}

/* What @name, launched behind @first, saw at once; 40 seeds, eagerly or in a graph. Return: how often *p was not there. */
static unsigned n_early(const char *first, const char *name, bool in_graph)
{
    unsigned n = 0;
    CUgraphExec exec = NULL;
    CUgraph graph;

    if (in_graph) {
        ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        launch(first, 0, stream, NULL);
        launch(name, seen, stream, &serialized);
        launch("hasty", seen + 8, stream, NULL);
        ok(cuStreamEndCapture(stream, &graph));
        exec = test_exec(graph, 0);
    }
    for (unsigned seed = 1; seed <= N_SEEDS; seed++) {
        set_seed(seed);
        ok(cuMemsetD32Async(p, 0, 1, stream));
        if (in_graph) {
            ok(cuGraphLaunch(exec, stream));
        } else {
            launch(first, 0, stream, NULL);
            launch(name, seen, stream, &serialized);
            launch("hasty", seen + 8, stream, NULL);
        }
        ok(cuStreamSynchronize(stream));
        n += !test_read(seen);
        /* what comes after the second comes after the first, too */
        ck_assert_uint_eq(test_read(seen + 8), 1);
        if (!strcmp(name, "second"))
            ck_assert_uint_eq(test_read(seen + 4), 1);
    }
    return n;
}

START_TEST(a_dependent_starts_at_the_trigger_and_waits_for_the_end)
{
    setup("1");
    for (int in_graph = 0; in_graph < 2; in_graph++) {
        unsigned n = n_early("first", "second", in_graph);

        ck_assert_uint_ge(n, N_SEEDS / 8);
        ck_assert_uint_lt(n, N_SEEDS);
        ck_assert_uint_eq(n_early("silent", "second", in_graph), 0);
        ck_assert_uint_ge(n_early("first", "hasty", in_graph), N_SEEDS / 8);
    }
}
END_TEST

START_TEST(without_a_seed_a_dependent_starts_at_the_end)
{
    setup("0");
    ck_assert_uint_eq(n_early("first", "second", false), 0);
    ck_assert_uint_eq(n_early("first", "second", true), 0);
}
END_TEST

/* Another stream waits for an event that the launch records. */
START_TEST(an_event_comes_at_the_trigger)
{
    CUstream other;
    CUlaunchAttribute attr;
    unsigned n = 0;

    setup("1");
    other = test_stream();
    attr = programmatic_event(event_new(CU_EVENT_DISABLE_TIMING));
    for (unsigned seed = 1; seed <= N_SEEDS; seed++) {
        set_seed(seed);
        ok(cuMemsetD32Async(p, 0, 1, stream));
        launch("first", 0, stream, &attr);
        ok(cuStreamWaitEvent(other, attr.value.programmaticEvent.event, 0));
        launch("hasty", seen, other, NULL);
        ok(cuCtxSynchronize());
        n += !test_read(seen);
    }
    ck_assert_uint_ge(n, N_SEEDS / 8);
}
END_TEST

START_TEST(an_event_of_a_launch_measures_no_time)
{
    CUlaunchAttribute attr;
    CUlaunchConfig config = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1 };
    void *params[] = { &p };
    CUfunction f;

    setup("0");
    attr = programmatic_event(event_new(CU_EVENT_DEFAULT));
    ok(cuModuleGetFunction(&f, module, "first"));
    config.blockDimY = config.blockDimZ = config.numAttrs = 1;
    config.attrs = &attr;
    fails(cuLaunchKernelEx(&config, f, params, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* The data of the edge into node @to, which has one. */
static CUgraphEdgeData edge_into(CUgraphNode to)
{
    CUgraphNode from;
    CUgraphEdgeData data;
    size_t n = 1;

    ok(cuGraphNodeGetDependencies_v2(to, &from, &data, &n));
    ck_assert_uint_eq(n, 1);
    return data;
}

static void nodes_of(CUgraph graph, CUgraphNode *nodes, size_t want)
{
    size_t n = want;

    ok(cuGraphGetNodes(graph, nodes, &n));
    ck_assert_uint_eq(n, want);
}

START_TEST(a_captured_launch_has_a_programmatic_edge_from_a_kernel)
{
    CUgraph graph;
    CUgraphNode nodes[4];

    setup("0");
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch("first", 0, stream, NULL);
    launch("second", seen, stream, &serialized);
    ok(cuMemsetD32Async(p, 0, 1, stream));
    launch("second", seen, stream, &serialized); /* after a memset: an ordinary edge */
    ok(cuStreamEndCapture(stream, &graph));
    nodes_of(graph, nodes, 4);
    ck_assert_int_eq(edge_into(nodes[1]).from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    ck_assert_int_eq(edge_into(nodes[1]).type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    ck_assert_int_eq(edge_into(nodes[2]).from_port, CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
    ck_assert_int_eq(edge_into(nodes[3]).type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
}
END_TEST

static CUgraph capture_event(CUlaunchAttribute *attr, CUevent event, bool kernel)
{
    CUstream other = test_stream();
    CUevent joined = event_new(CU_EVENT_DISABLE_TIMING);
    CUgraph graph;

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch("first", 0, stream, attr);
    ok(cuStreamWaitEvent(other, event, 0));
    if (kernel)
        launch("second", seen, other, NULL);
    else
        ok(cuMemsetD32Async(seen, 0, 1, other));
    ok(cuEventRecord(joined, other));
    ok(cuStreamWaitEvent(stream, joined, 0));
    ok(cuStreamEndCapture(stream, &graph));
    return graph;
}

START_TEST(a_captured_event_of_a_launch_names_its_port)
{
    CUgraphNode nodes[2];
    CUevent event;
    CUlaunchAttribute attr, begun;

    setup("0");
    event = event_new(CU_EVENT_DISABLE_TIMING);
    attr = programmatic_event(event);
    begun = (CUlaunchAttribute){ .id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
                                 .value.launchCompletionEvent = { .event = event } };
    nodes_of(capture_event(&attr, event, true), nodes, 2);
    ck_assert_int_eq(edge_into(nodes[1]).from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    nodes_of(capture_event(&begun, event, true), nodes, 2);
    ck_assert_int_eq(edge_into(nodes[1]).from_port, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER);
    ck_assert_int_eq(edge_into(nodes[1]).type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    nodes_of(capture_event(&attr, event, false), nodes, 2);
    ck_assert_int_eq(edge_into(nodes[1]).from_port, CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
}
END_TEST

START_TEST(a_port_and_a_type_must_fit)
{
    static const struct {
        unsigned char port, type;
        CUresult result;
    } rows[] = {
        { CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
          CUDA_SUCCESS },
        { CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
          CUDA_SUCCESS },
        { CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, CUDA_SUCCESS },
        { CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT,
          CUDA_ERROR_INVALID_VALUE },
        { CU_GRAPH_KERNEL_NODE_PORT_DEFAULT, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
          CUDA_ERROR_INVALID_VALUE },
    };
    CUgraphNode nodes[2];
    CUgraph graph;

    setup("0");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CUgraphEdgeData data = { .from_port = rows[i].port, .type = rows[i].type };

        ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        launch("first", 0, stream, NULL);
        launch("hasty", seen, stream, NULL);
        ok(cuStreamEndCapture(stream, &graph));
        nodes_of(graph, nodes, 2);
        ok(cuGraphRemoveDependencies(graph, &nodes[0], &nodes[1], 1));
        fails(cuGraphAddDependencies_v2(graph, &nodes[0], &nodes[1], &data, 1), rows[i].result);
    }
}
END_TEST

START_TEST(a_captured_kernel_has_its_streams_priority)
{
    CUkernelNodeAttrValue value;
    CUgraphNode node;
    CUstream urgent;
    CUgraph graph;

    setup("0");
    ok(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, -3));
    ok(cuStreamBeginCapture_v2(urgent, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch("first", 0, urgent, NULL);
    ok(cuStreamEndCapture(urgent, &graph));
    nodes_of(graph, &node, 1);
    ok(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    ck_assert_int_eq(value.priority, -3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("programmatic");
    TCase *tcase = tcase_create("programmatic");

    tcase_add_test(tcase, a_dependent_starts_at_the_trigger_and_waits_for_the_end);
    tcase_add_test(tcase, without_a_seed_a_dependent_starts_at_the_end);
    tcase_add_test(tcase, an_event_comes_at_the_trigger);
    tcase_add_test(tcase, an_event_of_a_launch_measures_no_time);
    tcase_add_test(tcase, a_captured_launch_has_a_programmatic_edge_from_a_kernel);
    tcase_add_test(tcase, a_captured_event_of_a_launch_names_its_port);
    tcase_add_test(tcase, a_port_and_a_type_must_fit);
    tcase_add_test(tcase, a_captured_kernel_has_its_streams_priority);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
