/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_calls SEED LENGTH [OUT [RECORDS [SKIP [THREADS]]]]: a random program of LENGTH operations on graphs. Its
 * answers go to OUT (- or nothing: stdout), what the library should record to RECORDS (see model.c). A
 * shorter program of the same seed begins with the same operations. SKIP is a list of operations to leave
 * out, `3,7-9`. Of several threads each runs a program of its own, in a context of its own.
 *
 * It knows nothing of DMI but its taps: with and without the library it must say the same.
 */
#include "program.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    void (*run)(struct program *p);
    unsigned weight;
} ops[] = {
    { op_graph, 6 },           { op_clone, 4 },
    { op_add_node, 60 },       { op_set_node, 12 },
    { op_get_node, 10 },       { op_attributes, 3 },
    { op_add_edges, 10 },      { op_remove_edges, 5 },
    { op_destroy_node, 5 },    { op_destroy_and_add, 4 },
    { op_destroy_graph, 3 },   { op_nodes, 8 },
    { op_edges, 8 },           { op_neighbours, 10 },
    { op_find_in_clone, 5 },   { op_dot, 2 },
    { op_mistakes, 5 },        { op_instantiate, 16 },
    { op_exec_destroy, 6 },    { op_launch, 30 },
    { op_exec_queries, 4 },    { op_enable, 14 },
    { op_eager, 8 },           { op_exec_set, 30 },
    { op_exec_set_child, 10 }, { op_update, 8 },
    { op_update_alike, 10 },   { op_update_clone, 12 },
    { op_capture, 16 },        { op_user_object, 4 },
    { op_user_retain, 4 },     { op_sync, 3 },
};

static void must(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return;
    fprintf(stderr, "graph_calls: %s: %d\n", what, (int)r);
    exit(2);
}

static void *some_memory(size_t n, size_t size)
{
    void *memory = calloc(n, size);
    if (!memory)
        abort();
    return memory;
}

static void start(struct program *p)
{
    const size_t area = N_SLOTS * SLOT_BYTES;
    CUdeviceptr *const areas[] = { &p->slots, &p->fills, &p->copies, &p->source };
    p->nodes = some_memory(MAX_NODES, sizeof *p->nodes);
    p->graphs = some_memory(MAX_GRAPHS, sizeof *p->graphs);
    p->execs = some_memory(MAX_EXECS, sizeof *p->execs);
    p->index = some_memory(1 << 17, sizeof *p->index);
    p->pattern = some_memory(area, 1);
    for (size_t i = 0; i < area; i++)
        p->pattern[i] = (unsigned char)(i * 0x9E3779B97F4A7C15u >> 56);
    random_start(p, -1);
    must(CALL(p, cuInit, 0), "cuInit");
    must(CALL(p, cuDeviceGet, &p->device, 0), "cuDeviceGet");
    must(CALL(p, cuCtxCreate_v2, &p->context, 0, p->device), "cuCtxCreate");
    kernels_load(p);
    for (size_t i = 0; i < 4; i++) {
        must(CALL(p, cuMemAlloc_v2, areas[i], area), "cuMemAlloc");
        must(CALL(p, cuMemsetD8_v2, *areas[i], 0, area), "cuMemsetD8");
    }
    must(CALL(p, cuMemcpyHtoD_v2, p->source, p->pattern, area), "cuMemcpyHtoD");
    must(CALL(p, cuMemAllocHost_v2, (void **)&p->host_copies, area), "cuMemAllocHost");
    memset(p->host_copies, 0, area);
    for (int i = 0; i < N_STREAMS - 1; i++)
        must(
            CALL(p, cuStreamCreate, &p->streams[i], i ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT),
            "cuStreamCreate");
    p->streams[N_STREAMS - 1] = CU_STREAM_PER_THREAD;
    for (int i = 0; i < N_EVENTS; i++)
        must(CALL(p, cuEventCreate, &p->events[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(CALL(p, cuCtxSynchronize), "cuCtxSynchronize");
}

/* "3,7-9" */
static bool skipped(const char *list, long at)
{
    while (list && *list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (at >= first && at <= last)
            return true;
        list = *end ? end + 1 : NULL;
    }
    return false;
}

static void operation(struct program *p)
{
    uint32_t total = 0, at;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        total += ops[i].weight;
    at = pick(p, total);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (at < ops[i].weight) {
            ops[i].run(p);
            return;
        }
        at -= ops[i].weight;
    }
}

/* Destroys everything, in some order; destructors are called. */
static void finish(struct program *p, long length)
{
    random_start(p, length);
    op_sync(p);
    for (int i = 0; i < p->n_execs + p->n_graphs; i++) {
        bool is_exec = i < p->n_execs;
        if (is_exec && p->execs[i].alive) {
            CUresult r = CALL(p, cuGraphExecDestroy, p->execs[i].handle);
            p->execs[i].alive = false;
            model_destroy(p, i);
            if (r != CUDA_SUCCESS)
                say_result(p, r);
        } else if (!is_exec && p->graphs[i - p->n_execs].alive &&
                   p->graphs[i - p->n_execs].owner < 0) {
            CUresult r = CALL(p, cuGraphDestroy, p->graphs[i - p->n_execs].handle);
            forget_graph(p, i - p->n_execs);
            if (r != CUDA_SUCCESS)
                say_result(p, r);
        }
    }
    for (int i = 0; i < p->n_objects; i++)
        if (p->object_mine[i]) {
            CALL(p, cuUserObjectRelease, p->objects[i], 1);
            p->object_refs[i]--;
        }
    op_sync(p);
}

struct job {
    struct program program;
    long length;
    const char *skip;
};

static void *run(void *arg)
{
    struct job *job = arg;
    struct program *p = &job->program;
    start(p);
    for (long i = 0; i < job->length; i++) {
        random_start(p, i);
        if (!skipped(job->skip, i))
            operation(p);
    }
    finish(p, job->length);
    CUcontext context = p->context;
    must(CALL(p, cuCtxDestroy_v2, context), "cuCtxDestroy");
    if (p->told)
        fclose(p->told);
    must(fclose(p->out) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS, "output");
    return NULL;
}

/* Of several threads each has files of its own: OUT.1, ... */
static FILE *open_file(const char *path, long thread)
{
    char name[4096];
    if (!path || !strcmp(path, "-"))
        return NULL;
    if (!thread)
        return fopen(path, "w");
    snprintf(name, sizeof name, "%s.%ld", path, thread);
    return fopen(name, "w");
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "graph_calls SEED LENGTH [OUT [RECORDS [SKIP [THREADS]]]]\n");
        return 2;
    }
    long n_threads = argc > 6 ? strtol(argv[6], NULL, 10) : 1;
    pthread_t threads[16];
    entries_load();
    for (long t = 0; t < n_threads && t < 16; t++) {
        struct job *job = some_memory(1, sizeof *job);
        job->length = strtol(argv[2], NULL, 10);
        job->skip = argc > 5 ? argv[5] : NULL;
        job->program.seed = strtoull(argv[1], NULL, 10) + (uint64_t)t * 1000003;
        job->program.alone = n_threads == 1;
        job->program.out = open_file(argc > 3 ? argv[3] : NULL, t);
        job->program.told = open_file(argc > 4 ? argv[4] : NULL, t);
        if (!job->program.out)
            job->program.out = stdout;
        if (getenv("GRAPH_CALLS_LINES"))
            setvbuf(job->program.out, NULL, _IOLBF, 0); /* output before a crash is not lost */
        if (n_threads == 1)
            run(job);
        else
            pthread_create(&threads[t], NULL, run, job);
    }
    for (long t = 0; t < n_threads && n_threads > 1 && t < 16; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
