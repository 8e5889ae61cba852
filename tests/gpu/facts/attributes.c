/* SPDX-License-Identifier: Apache-2.0 */
/* What a clone keeps of its original besides parameters: attributes, numbers, references. */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ attributes */

static const struct attribute {
    const char *name;
    CUlaunchAttributeID id;
    CUlaunchAttributeValue value;
    int capability;
} attributes[] = {
    { "priority", CU_LAUNCH_ATTRIBUTE_PRIORITY, { .priority = -1 }, 0 },
    { "cooperative", CU_LAUNCH_ATTRIBUTE_COOPERATIVE, { .cooperative = 1 }, 0 },
    { "cluster dimension",
      CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
      { .clusterDim = { 1, 1, 1 } },
      90 },
    { "memory sync domain",
      CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
      { .memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE },
      90 },
    { "memory sync domain map",
      CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
      { .memSyncDomainMap = { 0, 1 } },
      90 },
};

static bool is_kept(CUgraphNode original, CUgraphNode copy, CUlaunchAttributeID id)
{
    CUlaunchAttributeValue a, b;

    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    return CU(cuGraphKernelNodeGetAttribute, original, id, &a) == CUDA_SUCCESS &&
           CU(cuGraphKernelNodeGetAttribute, copy, id, &b) == CUDA_SUCCESS &&
           !memcmp(&a, &b, sizeof a);
}

static void ask_attribute(const struct attribute *a)
{
    CUfunction empty;
    CUgraph graph, clone;
    CUgraphNode node, copy;
    CUgraphExec exec;
    CUstream stream;
    char what[96];

    TRY(kernel(&empty, "empty"));
    TRY(new_stream(&stream));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_kernel(graph, &node, NULL, empty, NULL));
    CUresult r = CU(cuGraphKernelNodeSetAttribute, node, a->id, &a->value);
    snprintf(what, sizeof what, "%s: setting it", a->name);
    result(what, r);
    if (r != CUDA_SUCCESS)
        return;
    TRY(CU(cuGraphClone, &clone, graph));
    TRY(CU(cuGraphNodeFindInClone, &copy, node, clone));
    snprintf(what, sizeof what, "%s: a clone has it", a->name);
    holds(what, is_kept(node, copy, a->id));
    snprintf(what, sizeof what, "%s: instantiating the clone", a->name);
    r = new_exec(&exec, clone);
    result(what, r);
    if (r != CUDA_SUCCESS)
        return;
    TRY(CU(cuGraphLaunch, exec, stream));
    snprintf(what, sizeof what, "%s: running it", a->name);
    result(what, CU(cuStreamSynchronize, stream));
}

void ask_clone_attributes(void)
{
    for (size_t i = 0; i < LENGTH(attributes); i++)
        if (driver.capability >= attributes[i].capability)
            ask_attribute(&attributes[i]);
}

/* ------------------------------------------------------------------ numbers of nodes and graphs, since 13.1 */

typedef CUresult node_id_fn(CUgraphNode node, unsigned *id);
typedef CUresult graph_id_fn(CUgraph graph, unsigned *id);
typedef CUresult exec_id_fn(CUgraphExec exec, unsigned *id);
typedef CUresult tools_id_fn(CUgraphNode node, unsigned long long *id);

/* How many of a clone's nodes have their original's number for tools. */
static CUresult count_tools_ids(const CUgraphNode *nodes, unsigned n, CUgraph clone, unsigned *same)
{
    tools_id_fn *of_node = (tools_id_fn *)dlsym(driver.library, "cuGraphNodeGetToolsId");
    unsigned long long ids[2] = { 0, 0 };
    CUgraphNode copy;

    driver.last_call = "cuGraphNodeGetToolsId";
    if (!of_node)
        return driver_missing();
    for (unsigned i = 0; i < n; i++) {
        PASS(CU(cuGraphNodeFindInClone, &copy, nodes[i], clone));
        PASS(of_node(nodes[i], &ids[0]));
        PASS(of_node(copy, &ids[1]));
        *same += ids[0] == ids[1];
    }
    return CUDA_SUCCESS;
}

static void tell_exec_id(CUgraph clone, unsigned of_clone)
{
    exec_id_fn *of_exec = (exec_id_fn *)dlsym(driver.library, "cuGraphExecGetId");
    CUgraphExec exec;
    unsigned id = 0;

    driver.last_call = "cuGraphExecGetId";
    if (!of_exec) {
        failed(driver_missing());
        return;
    }
    TRY(new_exec(&exec, clone));
    TRY(of_exec(exec, &id));
    says("a clone and its exec have one id", id == of_clone ? "yes" : "no");
}

/* These are in no header before 13.1, by which tools name a node: PyTorch's annotations of graphs do. */
void ask_node_ids(void)
{
    node_id_fn *of_node = (node_id_fn *)dlsym(driver.library, "cuGraphNodeGetLocalId");
    graph_id_fn *of_graph = (graph_id_fn *)dlsym(driver.library, "cuGraphGetId");
    CUfunction empty;
    CUgraph graph, clone;
    CUgraphNode nodes[3], copy;
    unsigned ids[2] = { 0, 0 }, same = 0;

    if (!of_node || !of_graph) {
        skipped("this driver has no cuGraphNodeGetLocalId (13.1)");
        return;
    }
    TRY(kernel(&empty, "empty"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, 3, empty, NULL));
    TRY(CU(cuGraphClone, &clone, graph));
    for (int i = 0; i < 3; i++) {
        TRY(CU(cuGraphNodeFindInClone, &copy, nodes[i], clone));
        TRY(of_node(nodes[i], &ids[0]));
        TRY(of_node(copy, &ids[1]));
        same += ids[0] == ids[1];
    }
    says("nodes of a clone have the local ids of their originals", "%u of 3", same);
    TRY(of_graph(graph, &ids[0]));
    TRY(of_graph(clone, &ids[1]));
    says("graph and clone have one id", ids[0] == ids[1] ? "yes" : "no");
    tell_exec_id(clone, ids[1]);
    same = 0;
    TRY(count_tools_ids(nodes, 3, clone, &same));
    says("nodes of a clone have the tools' ids of their originals", "%u of 3", same);
}

/* ------------------------------------------------------------------ references to user objects */

static void count(void *counter)
{
    __atomic_fetch_add((int *)counter, 1, __ATOMIC_SEQ_CST);
}

static bool called(const int *counter)
{
    for (int i = 0; i < 200 && !__atomic_load_n(counter, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST) != 0;
}

/* A graph of one kernel that holds two references to a new object. */
static CUresult with_two(CUgraph *graph, CUuserObject *object, int *counter)
{
    CUfunction empty;
    CUgraphNode node;

    PASS(kernel(&empty, "empty"));
    PASS(CU(cuGraphCreate, graph, 0));
    PASS(add_kernel(*graph, &node, NULL, empty, NULL));
    PASS(CU(cuUserObjectCreate, object, counter, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return CU(cuGraphRetainUserObject, *graph, *object, 2, CU_GRAPH_USER_OBJECT_MOVE);
}

/* How many references @graph gives back, up to three. */
static void tell_count(const char *what, CUgraph graph, CUuserObject object)
{
    unsigned n = 0;

    while (n < 3 && CU(cuGraphReleaseUserObject, graph, object, 1) == CUDA_SUCCESS)
        n++;
    says(what, "%u", n);
}

void ask_user_object_counts(void)
{
    static int counters[3];
    CUuserObject objects[3];
    CUgraph graph, clone, parent, child;
    CUgraphNode node;
    CUgraphExec exec;

    TRY(with_two(&graph, &objects[0], &counters[0]));
    TRY(CU(cuGraphClone, &clone, graph));
    tell_count("references of a clone whose original has two", clone, objects[0]);
    TRY(CU(cuGraphDestroy, graph));
    says("the object is gone with the original", called(&counters[0]) ? "yes" : "no");

    TRY(with_two(&graph, &objects[1], &counters[1]));
    TRY(CU(cuGraphCreate, &parent, 0));
    TRY(CU(cuGraphAddChildGraphNode, &node, parent, NULL, 0, graph));
    TRY(CU(cuGraphChildGraphNodeGetGraph, node, &child));
    tell_count("references of a child graph whose original has two", child, objects[1]);
    tell_count("references of its parent", parent, objects[1]);

    /* as NCCL waits for it: everything of the application's is gone, and a clone is kept */
    TRY(with_two(&graph, &objects[2], &counters[2]));
    TRY(CU(cuGraphClone, &clone, graph));
    TRY(new_exec(&exec, clone));
    TRY(CU(cuGraphDestroy, graph));
    TRY(CU(cuGraphExecDestroy, exec));
    says("a clone that is kept holds the object", called(&counters[2]) ? "no" : "yes");
    TRY(CU(cuGraphDestroy, clone));
    says("it goes with the clone", called(&counters[2]) ? "yes" : "no");
}
