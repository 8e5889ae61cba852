/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stand-in for libcupti writes: NVIDIA's own walker, of the pinned toolkit's libcupti (CUPTI 13.0), which needs no driver, finds every record
 * where the stand-in's finds it; and the records say what was launched, and for how long, where there is a model (times.c).
 */
#include "test_standin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cupti_result.h>
/* after the result codes and cuda.h */
#include <cupti_activity.h>

typedef CUptiResult next_fn(uint8_t *buffer, size_t n, CUpti_Activity **record);

static struct {
    __typeof__(cuptiActivityRegisterCallbacks) *register_callbacks;
    __typeof__(cuptiActivityEnable) *enable;
    __typeof__(cuptiActivityFlushAll) *flush_all;
    __typeof__(cuptiActivityGetNumDroppedRecords) *dropped;
    next_fn *next, *nvidias_next;
} cupti;

/* ---- buffers ---- */

#define BUFFERS 8
static uint8_t *buffers[BUFFERS];
static size_t n_valid[BUFFERS];
static unsigned n_asked, n_back;

static void request(uint8_t **buffer, size_t *size, size_t *most)
{
    ck_assert_uint_lt(n_asked, BUFFERS);
    *size = 4096; /* a few records */
    *buffer = buffers[n_asked++] = calloc(1, *size);
    *most = 0;
}

static void complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream;
    ck_assert_uint_le(valid, size);
    ck_assert_ptr_eq(buffer, buffers[n_back]);
    n_valid[n_back++] = valid;
}

static CUdeviceptr make(void)
{
    test_setup_module();
    return test_zeros(4096);
}

static void start(void)
{
    ck_assert_int_eq(cupti.register_callbacks(request, complete), CUPTI_SUCCESS);
    ck_assert_int_eq(cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), CUPTI_SUCCESS);
    ck_assert_int_eq(cupti.enable(CUPTI_ACTIVITY_KIND_MEMCPY), CUPTI_SUCCESS);
    ck_assert_int_eq(cupti.enable(CUPTI_ACTIVITY_KIND_MEMSET), CUPTI_SUCCESS);
}

/* ---- records ---- */

static CUpti_Activity *records[256];
static unsigned n_records;

/* Both walkers go over all that came back; NVIDIA's ends where it should. */
static void walk(void)
{
    ck_assert(cupti.next != cupti.nvidias_next);
    ck_assert_int_eq(cupti.flush_all(1), CUPTI_SUCCESS);
    n_records = 0;
    for (unsigned i = 0; i < n_back; i++) {
        CUpti_Activity *record = NULL, *other = NULL;
        CUptiResult r, other_r;

        while ((r = cupti.next(buffers[i], n_valid[i], &record)) == CUPTI_SUCCESS) {
            ck_assert_int_eq(cupti.nvidias_next(buffers[i], n_valid[i], &other), CUPTI_SUCCESS);
            ck_assert_ptr_eq(record, other);
            records[n_records++] = record;
        }
        other_r = cupti.nvidias_next(buffers[i], n_valid[i], &other);
        ck_assert_int_eq(other_r, CUPTI_ERROR_MAX_LIMIT_REACHED);
        ck_assert_int_eq(r, CUPTI_ERROR_MAX_LIMIT_REACHED);
    }
}

static unsigned count(CUpti_ActivityKind kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_records; i++)
        n += records[i]->kind == kind;
    return n;
}

START_TEST(nvidias_walker_finds_each_record)
{
    CUdeviceptr p = make();
    CUstream stream = test_stream();
    uint32_t words[4];

    start();
    for (int i = 0; i < 40; i++) {
        ok(test_launch_add(p, 4, 1, stream));
        if (i % 8 == 0)
            ok(cuMemsetD32Async(p + 64, 5, 4, stream));
        if (i % 16 == 0)
            ok(cuMemcpyDtoHAsync_v2(words, p, sizeof(words), stream));
    }
    ok(cuStreamSynchronize(stream));
    walk();
    ck_assert_uint_gt(n_back, 1);
    ck_assert_uint_eq(count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), 40);
    ck_assert_uint_eq(count(CUPTI_ACTIVITY_KIND_MEMSET), 5);
    ck_assert_uint_eq(count(CUPTI_ACTIVITY_KIND_MEMCPY), 3);
    uint64_t last = 0;
    for (unsigned i = 0; i < n_records; i++) {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)records[i];

        if (k->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            continue;
        ck_assert_uint_gt(k->correlationId, last);
        ck_assert(k->start && k->start <= k->end && !k->graphId && k->blockX);
        ck_assert_str_eq(k->name, "add");
        last = k->correlationId;
    }
}
END_TEST

/* All that one launch of a graph ran has one correlation id, and the graph's and nodes' ids. */
START_TEST(a_graphs_records_have_its_ids)
{
    CUdeviceptr p = make();
    CUstream stream = test_stream();
    CUgraph graph;

    start();
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 3; i++)
        ok(test_launch_add(p, 4, 1, stream));
    ok(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = test_exec(graph, 0);
    ok(cuGraphLaunch(exec, stream));
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    walk();
    ck_assert_uint_eq(n_records, 6);
    for (unsigned i = 0; i < 6; i++) {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)records[i];
        const CUpti_ActivityKernel10 *first = (const CUpti_ActivityKernel10 *)records[i / 3 * 3];
        const CUpti_ActivityKernel10 *same = (const CUpti_ActivityKernel10 *)records[i % 3];

        ck_assert(k->graphId && k->graphId == first->graphId &&
                  k->graphNodeId == same->graphNodeId);
        ck_assert_uint_eq(k->correlationId, first->correlationId);
    }
    ck_assert_uint_ne(((const CUpti_ActivityKernel10 *)records[0])->correlationId,
                      ((const CUpti_ActivityKernel10 *)records[3])->correlationId);
}
END_TEST

START_TEST(dropped_records_are_counted_once)
{
    CUdeviceptr p = make();
    size_t n = 0;

    setenv("DMI_STANDIN_CUPTI", "13000,drop:4", 1);
    start();
    for (int i = 0; i < 20; i++)
        ok(test_launch_add(p, 4, 1, NULL));
    ok(cuCtxSynchronize());
    walk();
    ck_assert_uint_eq(n_records, 15);
    ck_assert_int_eq(cupti.dropped(NULL, 0, &n), CUPTI_SUCCESS);
    ck_assert_uint_eq(n, 5);
    ck_assert_int_eq(cupti.dropped(NULL, 0, &n), CUPTI_SUCCESS);
    ck_assert_uint_eq(n, 0);
}
END_TEST

/* ---- DMI_STANDIN_TIMES ---- */

static void model(const char *text)
{
    char path[32];
    int fd = memfd_create("times", 0);

    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    setenv("DMI_STANDIN_TIMES", path, 1);
}

static const CUpti_ActivityKernel10 *kernel(unsigned i)
{
    return (const CUpti_ActivityKernel10 *)records[i];
}

static uint64_t took(unsigned i)
{
    return kernel(i)->end - kernel(i)->start;
}

/* A first kernel of 40 ms holds those after it back, so that they lie end to end, as do the events between them. */
START_TEST(a_model_says_how_long_operations_take)
{
    float ms;
    CUevent first, last;
    uint32_t words[250];

    model("kernel no* 1\n\n# a comment\nkernel a?d 40000000 # the first\nkernel * 3\n"
          "from 40000000 0.0001\ncopy 5000 0.05\nfill 700000 100\n");
    CUdeviceptr p = make();
    CUstream stream = test_stream();

    ok(cuEventCreate(&first, 0));
    ok(cuEventCreate(&last, 0));
    start();
    ok(test_launch_add(p, 4, 1, stream));
    ok(cuEventRecord(first, stream));
    for (int i = 0; i < 10; i++)
        ok(test_launch_add(p, 4, 1, stream));
    ok(cuEventRecord(last, stream));
    ok(cuMemcpyDtoHAsync_v2(words, p, sizeof(words), stream));
    ok(cuMemsetD32Async(p, 5, 250, stream));
    ok(cuStreamSynchronize(stream));
    walk();
    ck_assert_uint_eq(n_records, 13);
    ck_assert_uint_eq(took(0), 40000000);
    for (unsigned i = 1; i < 11; i++) {
        ck_assert_uint_eq(took(i), 4000);
        ck_assert_uint_eq(kernel(i)->start, kernel(i - 1)->end);
    }
    ok(cuEventElapsedTime(&ms, first, last));
    ck_assert_int_eq((int)((double)ms * 1e6 + 0.5), 40000);
    const CUpti_ActivityMemcpy6 *copy = (const CUpti_ActivityMemcpy6 *)records[11];
    const CUpti_ActivityMemset4 *set = (const CUpti_ActivityMemset4 *)records[12];
    ck_assert_uint_eq(copy->end - copy->start, 3); /* (5000 + 1000 / 0.05) / 10000 */
    ck_assert_uint_eq(set->end - set->start, 70);
}
END_TEST

/* What waits for an operation goes on no earlier than the model says. */
START_TEST(the_host_waits_for_a_modelled_end)
{
    struct timespec begin, end;

    model("kernel * 10000000\ndevice 0 3\ndevice 1 0\n");
    CUdeviceptr p = make();

    clock_gettime(CLOCK_MONOTONIC, &begin);
    ok(test_launch_add(p, 4, 1, NULL));
    ok(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &end);
    ck_assert_int_ge((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec,
                     30000000);
}
END_TEST

START_TEST(noise_is_the_seeds)
{
    static const char *const seeds[] = { "kernel * 1000000\nnoise 7 20\n",
                                         "kernel * 1000000\nnoise 8 20\n" };
    uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (unsigned run = 0; run < 3; run++) { /* the seeds 7, 7, 8 */
        int status;
        pid_t child = fork();

        if (!child) {
            model(seeds[run / 2]);
            CUdeviceptr p = make();

            start();
            for (int i = 0; i < 9; i++)
                ok(test_launch_add(p, 4, 1, NULL));
            ok(cuCtxSynchronize());
            walk();
            for (unsigned i = 0; i < 9; i++)
                shared[run * 9 + i] = took(i);
            _exit(n_records != 9);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_mem_eq(shared, shared + 9, 9 * sizeof(*shared));
    ck_assert_mem_ne(shared, shared + 18, 9 * sizeof(*shared));
    for (unsigned i = 0; i < 27; i++)
        ck_assert(shared[i] >= 800000 && shared[i] <= 1200000 && shared[i] != shared[(i + 1) % 27]);
}
END_TEST

/* Return: what the process says whose model is @text. */
static const char *refusal(const char *text)
{
    static char said[512];
    int status, ends[2];
    pid_t child;

    ck_assert_int_eq(pipe(ends), 0);
    child = fork();
    if (!child) {
        dup2(ends[1], 2);
        model(text);
        cuInit(0);
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], said, sizeof(said) - 1);

    ck_assert_int_ge(n, 0);
    said[n] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    return said;
}

START_TEST(a_wrong_line_is_named)
{
    static const char *const lines[] = { "kernel *",    "kernel * x",   "kernel * 1 2",
                                         "kernel * -1", "copy 5 0",     "fill 5",
                                         "device 9 1",  "from 1 nan",   "noise 1 101",
                                         "kernels * 1", "kernel * 1ms", "device x 1" };
    char text[64];

    for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        snprintf(text, sizeof(text), "kernel * 1\n%s\n", lines[i]);
        const char *said = refusal(text);

        ck_assert_msg(strstr(said, ":2: expected kernel PATTERN NS") != NULL, "%s: %s", lines[i],
                      said);
    }
}
END_TEST

static void *look_up(const char *path, const char *name)
{
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

    return library ? dlsym(library, name) : NULL;
}

/* test_cupti STANDINS NVIDIAS: both libraries */
int main(int argc, char **argv)
{
    const char *standin = argc > 1 ? argv[1] : NULL, *nvidias = argc > 2 ? argv[2] : NULL;
    Suite *suite = suite_create("cupti");
    TCase *c = tcase_create("records");

    *(void **)&cupti.register_callbacks = look_up(standin, "cuptiActivityRegisterCallbacks");
    *(void **)&cupti.enable = look_up(standin, "cuptiActivityEnable");
    *(void **)&cupti.flush_all = look_up(standin, "cuptiActivityFlushAll");
    *(void **)&cupti.dropped = look_up(standin, "cuptiActivityGetNumDroppedRecords");
    *(void **)&cupti.next = look_up(standin, "cuptiActivityGetNextRecord");
    *(void **)&cupti.nvidias_next = look_up(nvidias, "cuptiActivityGetNextRecord");
    if (!cupti.next || !cupti.nvidias_next) {
        printf("no libcupti.so.13 of the stand-in or of the toolkit\n");
        return 77;
    }
    tcase_add_test(c, nvidias_walker_finds_each_record);
    tcase_add_test(c, a_graphs_records_have_its_ids);
    tcase_add_test(c, dropped_records_are_counted_once);
    tcase_add_test(c, a_model_says_how_long_operations_take);
    tcase_add_test(c, the_host_waits_for_a_modelled_end);
    tcase_add_test(c, noise_is_the_seeds);
    tcase_add_test(c, a_wrong_line_is_named);
    suite_add_tcase(suite, c);
    return test_run(suite);
}
