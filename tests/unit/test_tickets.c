/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches, eager ones and of graphs with several copies, from the reservation in front of them to the
 * record behind them, under random schedules (ThreadSanitizer): the library's own launch path, ring and
 * drain, on a model of driver and device. Some launches are refused by the driver, some copies never
 * run, some do not fit. Whatever happens: every record that the spec wants of a launch that ran is
 * captured once, with its own bytes, or is a counted drop; nothing stalls; the ring comes back whole.
 */
#include "preload/exec_private.h"
#include "tests/unit/drain_kit.h"
#include "tests/unit/tickets_device.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_HOSTS    3 /* threads of the engine's that launch */
#define N_EXECS    2 /* each has */
#define N_KERNELS  3 /* each has: two with one tensor, one with two */
#define HOST_SITES 4
#define N_SITES    (N_HOSTS * HOST_SITES)
#define N_LAUNCHES 24 /* each makes */
#define STUCK_S    240

static_assert(N_SITES == DEVICE_SITES, "a site is of one host's");

static const uint32_t first_site[N_KERNELS] = { 0, 1, 2 }, n_tensors[N_KERNELS] = { 1, 1, 2 };

static struct spec *spec;
static const struct func *funcs[N_HOSTS][N_KERNELS];
static char functions[N_HOSTS][N_KERNELS]; /* their addresses are the handles */

/* A graph of a host's, instantiated: the library's view and the device's. */
struct graph {
    struct exec *exec;
    struct device_exec *device;
    uint32_t kernel[DEVICE_KERNELS];
    uint32_t n[DEVICE_KERNELS]; /* bytes a tensor, as its parameters are now */
    unsigned char *buffer[DEVICE_KERNELS];
};

struct host {
    pthread_t thread;
    uint32_t number;
    uint64_t seed;
    struct graph graphs[N_EXECS];
    unsigned char
        *buffer[DEVICE_STREAMS]; /* of eager launches: what follows on the stream is behind */
    /* of launches that the driver took */
    uint64_t wanted[HOST_SITES]; /* records */
    uint64_t refused;            /* records for which there was no place, or no copy */
    uint64_t unfit;              /* records of eager launches that the ring never holds at once */
};

static struct world {
    struct arena arena;
    struct host hosts[N_HOSTS];
    uint32_t max_bytes; /* of a tensor */
    uint8_t off[N_SITES + 1];
    /* encoder only */
    uint64_t n_appends, fail_append_at, last_launch, n_wrong;
} world;

/* ------------------------------------------------------------------------- in the library's place */

int run_append(struct run *run, const struct run_record *records, size_t n_records)
{
    (void)run;
    if (++world.n_appends == world.fail_append_at)
        return -ENOSPC;
    for (size_t i = 0; i < n_records; i++) {
        const struct run_record *r = &records[i];
        const unsigned char *data = r->data;
        bool good = r->launch >= world.last_launch && r->launch < DEVICE_LEDGER &&
                    r->site < N_SITES && r->n_dims == 1 && r->dims[0] == r->n_bytes &&
                    r->n_bytes <= world.max_bytes;
        for (size_t k = 0; good && k < r->n_bytes; k++)
            good = data[k] == device_pattern(r->launch, r->site, k);
        if (good) {
            uint16_t bit = (uint16_t)(1u << r->site);
            good =
                !(__atomic_fetch_or(&device.fate[r->launch].captured, bit, __ATOMIC_RELAXED) & bit);
        }
        world.n_wrong += !good;
        world.last_launch = r->launch;
    }
    return 0;
}

struct arena *arena_current(void)
{
    return &world.arena;
}

struct run *process_run(void)
{
    return (struct run *)&world;
}

void process_problem(uint32_t site, enum problem problem, const char *fmt, ...)
{
    (void)site, (void)problem, (void)fmt;
}

void *hooks_real_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

/* ------------------------------------------------------------------------- the engine's kernels */

/* What funcs.c keeps hangs on a table in mapped memory, where LeakSanitizer does not look. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:funcs_add\n";
}

/* Kernel k of host h is named hHkK; the last one's second tensor lies behind its first. */
static void load_spec(void)
{
    char text[8192] = "hookspec: 1\nsites:\n";
    size_t n = strlen(text);
    for (unsigned h = 0; h < N_HOSTS; h++)
        for (unsigned k = 0; k < N_KERNELS; k++)
            for (unsigned t = 0; t < n_tensors[k]; t++)
                n += (size_t)snprintf(
                    text + n, sizeof text - n,
                    "  - {name: s%u, kernel: '^h%uk%u$', pointer: 'arg[0]', dtype: u8,\n"
                    "     offset: 'arg[1].i32 * %u', dims: [{row: true, count: 'arg[1].i32'}]}\n",
                    h * HOST_SITES + first_site[k] + t, h, k, t);
    struct spec_errors errors = { 0 };
    int r = spec_parse("tickets", text, n, NULL, 0, &errors, &spec);
    ck_assert_msg(r == 0, "%s", errors.n_lines ? errors.lines[0] : "no spec");
    spec_errors_deinit(&errors);
    ck_assert_uint_eq(spec->n_sites, N_SITES);
    for (unsigned h = 0; h < N_HOSTS; h++)
        for (unsigned k = 0; k < N_KERNELS; k++) {
            char name[16];
            snprintf(name, sizeof name, "h%uk%u", h, k);
            funcs[h][k] = funcs_add(spec, &functions[h][k], FUNC_FUNCTION, name, NULL);
            ck_assert_uint_eq(funcs[h][k]->match.n_sites, n_tensors[k]);
        }
}

static struct engine_kernel kernel_of(const struct host *h, uint32_t kernel, unsigned char *out,
                                      uint32_t n)
{
    return (struct engine_kernel){ .out = out,
                                   .n = n,
                                   .n_tensors = n_tensors[kernel],
                                   .site = h->number * HOST_SITES + first_site[kernel] };
}

/* Mostly small, now and then nothing, or more than the ring will ever hold. */
static uint32_t any_size(uint64_t *seed)
{
    uint64_t which = kit_next(seed) % 12, n = 1 + kit_next(seed) % world.max_bytes;
    return which == 0 ? 0 : which == 1 ? (uint32_t)n : 1 + (uint32_t)(n / 16);
}

/* ------------------------------------------------------------------------- graphs */

static void set_params(struct host *h, struct graph *g, uint32_t i, uint32_t n)
{
    void *params[] = { &g->buffer[i], &n };
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = (CUfunction)&functions[h->number][g->kernel[i]],
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 1,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params };
    CUgraphNode node = (CUgraphNode)&g->device->engine[i];
    ck_assert_int_eq(driver_table.cuGraphExecKernelNodeSetParams_v2(g->exec->handle, node, &k),
                     CUDA_SUCCESS);
    execs_kernel_changed(g->exec, node, &k);
    g->n[i] = n;
}

static void add_kernel(struct host *h, struct graph *g, uint32_t kernel)
{
    struct exec *x = g->exec;
    struct device_exec *d = g->device;
    uint32_t i = d->n_engine++;
    d->engine[i] = (struct device_node){ .kind = NODE_ENGINE,
                                         .enabled = true,
                                         .engine = kernel_of(h, kernel, NULL, 0) };
    g->kernel[i] = kernel;
    g->buffer[i] = malloc(2 * (size_t)world.max_bytes);
    ck_assert(g->buffer[i]);
    x->entries[x->n_entries++] = (struct entry){ .host = (CUgraphNode)&d->engine[i],
                                                 .node = (CUgraphNode)&d->engine[i],
                                                 .enabled = true,
                                                 .func = funcs[h->number][kernel],
                                                 .first_copy = x->n_copies,
                                                 .n_copies = n_tensors[kernel] };
    for (uint32_t t = 0; t < n_tensors[kernel]; t++) {
        struct device_node *node = &d->copy[d->n_copies++];
        struct copy *c = &x->copies[x->n_copies++];
        *c = (struct copy){ .node = (CUgraphNode)node, .want.site = d->engine[i].engine.site + t };
        *node = (struct device_node){ .kind = NODE_COPY, .enabled = true, .behind = i };
        exec_fill_copy(x, c, &node->copy);
    }
}

/* What surgery.c and instantiate would have made: one to three kernels that wait for nothing but open. */
static void make_graph(struct host *h, struct graph *g)
{
    g->exec = calloc(1, sizeof *g->exec);
    g->device = calloc(1, sizeof *g->device);
    ck_assert(g->exec && g->device);
    struct exec *x = g->exec;
    struct device_exec *d = g->device;
    x->handle = (CUgraphExec)d;
    x->arena = &world.arena;
    x->state = (CUdeviceptr)(uintptr_t)&d->state;
    x->open = (CUgraphNode)&d->open;
    x->close = (CUgraphNode)&d->close;
    x->ticket.state = x->state;
    x->empty = true;
    x->epoch = process.memory_epoch;
    x->entries = calloc(DEVICE_KERNELS, sizeof *x->entries);
    x->copies = calloc(DEVICE_COPIES, sizeof *x->copies);
    ck_assert(x->entries && x->copies);
    d->open = (struct device_node){ .kind = NODE_OPEN, .enabled = true, .open.state = x->state };
    d->close =
        (struct device_node){ .kind = NODE_CLOSE,
                              .enabled = true,
                              .close = { .state = x->state, .desc = world.arena.desc_device } };
    uint32_t first = (uint32_t)(kit_next(&h->seed) % N_KERNELS),
             n = 1 + (uint32_t)(kit_next(&h->seed) % N_KERNELS);
    for (uint32_t i = 0; i < n; i++)
        add_kernel(h, g, (first + i) % N_KERNELS);
    for (uint32_t i = 0; i < n; i++)
        set_params(h, g, i, any_size(&h->seed));
}

static void free_graph(struct graph *g)
{
    for (uint32_t i = 0; i < g->device->n_engine; i++)
        free(g->buffer[i]);
    free(g->exec->entries);
    free(g->exec->copies);
    free(g->exec);
    free(g->device);
}

/* ------------------------------------------------------------------------- launches */

static bool any(uint64_t *seed, uint64_t one_in)
{
    return kit_next(seed) % one_in == 0;
}

/* Does the driver refuse a launch? All of them once the context is broken. */
static bool refuses(uint64_t *seed)
{
    return any(seed, 10) || atomic_load_relaxed(&kit.n_copies) >= kit.fail_copy_at;
}

static CUstream any_stream(uint64_t *seed)
{
    return (CUstream)(uintptr_t)(1 + kit_next(seed) % DEVICE_STREAMS);
}

/* Counts what the spec wants of one kernel's launch. Return: records. */
static uint32_t want(struct host *h, uint32_t kernel, uint32_t n, bool taken)
{
    uint32_t n_wanted = 0;
    for (uint32_t t = 0; n && t < n_tensors[kernel]; t++) {
        uint32_t site = first_site[kernel] + t;
        if (world.off[h->number * HOST_SITES + site])
            continue;
        h->wanted[site] += taken;
        n_wanted++;
    }
    return n_wanted;
}

static void launch_graph(struct host *h, struct graph *g)
{
    struct exec_job job;
    struct device_exec *d = g->device;
    for (uint32_t i = 0; i < d->n_engine; i++) {
        if (any(&h->seed, 2))
            set_params(h, g, i, any_size(&h->seed));
        if (any(&h->seed, 12)) {
            bool on = !g->exec->entries[i].enabled;
            driver_table.cuGraphNodeSetEnabled(g->exec->handle, (CUgraphNode)&d->engine[i], on);
            execs_node_enabled(g->exec, (CUgraphNode)&d->engine[i], on);
        }
    }
    CUstream stream = any_stream(&h->seed);
    execs_launch_before(g->exec, stream, false, &job);
    kit_nap(&h->seed);
    bool refuse = refuses(&h->seed);
    uint32_t skip = any(&h->seed, 3) ? (uint32_t)(kit_next(&h->seed) & kit_next(&h->seed)) : 0;
    uint64_t seq = job.n_slots ? ring_slot(&world.arena.ring, job.first)->seq : 0;
    if (!refuse)
        device_launch_graph(d, stream, seq, skip);
    execs_launch_after(&job, refuse ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS);
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_engine; i++)
        if (d->engine[i].enabled)
            n += want(h, g->kernel[i], g->n[i], !refuse);
    if (!refuse)
        h->refused += n - (job.n_slots ? job.n_slots - 1 : 0);
}

static void launch_kernel(struct host *h)
{
    struct launch_job job;
    uint32_t kernel = (uint32_t)(kit_next(&h->seed) % N_KERNELS), n = any_size(&h->seed);
    CUstream stream = any_stream(&h->seed);
    unsigned char *out = h->buffer[(uintptr_t)stream - 1];
    void *params[] = { &out, &n };
    struct launch l = { .function = (CUfunction)&functions[h->number][kernel],
                        .grid = { 1, 1, 1 },
                        .block = { 1, 1, 1 },
                        .stream = stream,
                        .kernel_params = params };
    struct engine_kernel k = kernel_of(h, kernel, out, n);
    launch_before(&l, funcs[h->number][kernel], &job);
    kit_nap(&h->seed);
    for (uint32_t i = 0; i < job.n_items; i++)
        if (job.items[i].reserved)
            k.seed[job.items[i].site - k.site] =
                ring_slot(&world.arena.ring, job.items[i].slot)->seq;
    bool refuse = refuses(&h->seed);
    if (!refuse)
        device_launch_kernel(&k, stream);
    launch_after(&l, &job, refuse ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS);
    uint32_t n_wanted = want(h, kernel, n, !refuse);
    if (refuse)
        return;
    for (uint32_t i = 0; i < job.n_items; i++)
        h->refused += job.items[i].drop != 0;
    if (n_wanted * ((n + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN) > world.arena.ring.n_bytes)
        h->unfit += n_wanted;
}

/* As dmi_site_enable() does; each host has sites of its own. */
static void switch_a_site(struct host *h)
{
    uint64_t site = h->number * HOST_SITES + kit_next(&h->seed) % HOST_SITES;
    atomic_store_relaxed(&process.off[site], !process.off[site]);
    atomic_add_acq_rel(&process.switches, 1);
}

static void *host_main(void *arg)
{
    struct host *h = arg;
    for (int i = 0; i < N_LAUNCHES; i++) {
        if (any(&h->seed, 10))
            switch_a_site(h);
        if (any(&h->seed, 3))
            launch_kernel(h);
        else
            launch_graph(h, &h->graphs[kit_next(&h->seed) % N_EXECS]);
        kit_nap(&h->seed);
    }
    return NULL;
}

/* ------------------------------------------------------------------------- one schedule */

static void make_ring(uint64_t *seed)
{
    struct arena *a = &world.arena;
    uint32_t n_slots = RING_MIN_SLOTS << kit_next(seed) % 10;
    uint64_t n_bytes = (RING_MIN_BYTES << kit_next(seed) % 12) + kit_next(seed) % 4 * RING_ALIGN;
    struct dmi_desc *desc = calloc(n_slots, sizeof *desc);
    struct ring_slot *slots = calloc(n_slots, sizeof *slots);
    a->pending = calloc(n_slots, sizeof *a->pending);
    a->sites = calloc(N_SITES + 1, sizeof *a->sites);
    a->payload = (CUdeviceptr)(uintptr_t)malloc(n_bytes);
    ck_assert(desc && slots && a->pending && a->sites && a->payload);
    ck_assert_int_eq(ring_init(&a->ring, desc, slots, n_slots, n_bytes), 0);
    a->desc_device = (CUdeviceptr)(uintptr_t)desc;
    world.max_bytes = (uint32_t)(n_bytes + n_bytes / 4);
}

static void set_up(uint64_t *seed)
{
    struct arena *a = &world.arena;
    kit_reset(N_SITES);
    device_install();
    memset(&world, 0, sizeof world);
    memset(&device, 0, sizeof device);
    process.armed = 1;
    process.spec = spec;
    process.next_launch = DMI_SEQ_FIRST;
    process.memory_epoch = 1;
    process.step = UINT64_MAX;
    process.off = world.off;
    world.fail_append_at = UINT64_MAX;
    pthread_mutex_init(&a->lock, NULL);
    a->state = ARENA_READY;
    a->forward.kind = -1;
    a->copy = (CUfunction) "copy";
    a->copy_graph = (CUfunction) "copy_graph";
    a->open = (CUfunction) "open";
    a->close = (CUfunction) "close";
    make_ring(seed);
    if (!spec)
        load_spec();
    process.spec = spec;
    /* whoever waits so long for room does so in vain */
    spec->overload = any(seed, 2) ? SPEC_OVERLOAD_COMPLETE : SPEC_OVERLOAD_DROP;
    spec->overload_wait_ns = STUCK_S / 2 * SECOND;
    if (any(seed, 8))
        world.fail_append_at = 1 + kit_next(seed) % 6;
    if (any(seed, 10))
        kit.fail_copy_at = 1 + kit_next(seed) % 30;
    if (any(seed, 3))
        device.refuse_params_every = 3 + kit_next(seed) % 20;
    if (any(seed, 3))
        device.refuse_copy_every = 2 + kit_next(seed) % 10;
    for (uint32_t i = 0; i < N_HOSTS; i++) {
        struct host *h = &world.hosts[i];
        h->number = i;
        h->seed = kit_next(seed);
        for (int s = 0; s < DEVICE_STREAMS; s++)
            ck_assert((h->buffer[s] = malloc(2 * (size_t)world.max_bytes)));
        for (int g = 0; g < N_EXECS; g++)
            make_graph(h, &h->graphs[g]);
    }
}

static void tear_down(void)
{
    struct arena *a = &world.arena;
    for (uint32_t i = 0; i < N_HOSTS; i++) {
        for (int s = 0; s < DEVICE_STREAMS; s++)
            free(world.hosts[i].buffer[s]);
        for (int g = 0; g < N_EXECS; g++)
            free_graph(&world.hosts[i].graphs[g]);
    }
    drain_free(a);
    pthread_mutex_destroy(&a->lock);
    free(a->ring.desc);
    free(a->ring.slots);
    free(a->pending);
    free(a->sites);
    free((void *)(uintptr_t)a->payload);
}

static struct dmi_tally sum_of(const struct dmi_site_counters *c)
{
    struct dmi_tally sum = c->captured;
    for (int i = 0; i < DMI_DROP_COUNT; i++) {
        sum.records += c->dropped[i].records;
        sum.rows += c->dropped[i].rows;
        sum.bytes += c->dropped[i].bytes;
    }
    return sum;
}

/* All that can be told of a record whatever failed. */
static void check_account(void)
{
    for (uint32_t i = 0; i < N_SITES; i++) {
        const struct dmi_site_counters *c = &process.counters->sites[i];
        struct dmi_tally sum = sum_of(c);
        ck_assert_uint_eq(c->expected.records, sum.records);
        ck_assert_uint_eq(c->expected.rows, sum.rows);
        ck_assert_uint_eq(c->expected.bytes, sum.bytes);
    }
    for (uint64_t seq = 0; seq < process.next_launch && seq < DEVICE_LEDGER; seq++)
        ck_assert_uint_eq(device.fate[seq].captured & ~device.fate[seq].published, 0);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_MISMATCH) + kit_dropped(DMI_DROP_EXIT_TIMEOUT), 0);
}

/* And where the context is well: what was reserved is captured, or was not run. */
static void check_fates(void)
{
    uint64_t refused = 0, unfit = 0, published = 0;
    for (uint32_t i = 0; i < N_SITES; i++) {
        const struct dmi_site_counters *c = &process.counters->sites[i];
        ck_assert_uint_eq(c->expected.records, world.hosts[i / HOST_SITES].wanted[i % HOST_SITES]);
        ck_assert_uint_eq(c->dropped[DMI_DROP_NOT_RUN].records, device.skipped[i]);
        ck_assert_uint_eq(c->captured.records + c->dropped[DMI_DROP_WRITE_FAILED].records,
                          device.published[i]);
        published += device.published[i];
    }
    for (int i = 0; i < N_HOSTS; i++) {
        refused += world.hosts[i].refused;
        unfit += world.hosts[i].unfit;
    }
    ck_assert_uint_eq(kit_dropped(DMI_DROP_RING_FULL) + kit_dropped(DMI_DROP_TOO_LARGE) +
                          kit_dropped(DMI_DROP_COPY_FAILED),
                      refused);
    if (spec->overload == SPEC_OVERLOAD_COMPLETE)
        ck_assert_uint_le(kit_dropped(DMI_DROP_RING_FULL), unfit);
    if (world.fail_append_at == UINT64_MAX)
        ck_assert_uint_eq(kit_captured(), published);
}

/* One record takes all of its bytes, one launch all of its slots. */
static void check_ring_is_whole(void)
{
    struct ring *ring = &world.arena.ring;
    uint64_t index, at;
    ck_assert_uint_eq(ring_in_flight(ring), 0);
    ck_assert_int_eq(ring_reserve(ring, process.next_launch, 0, ring->n_bytes, &index, &at), 0);
    ring_cancel(ring, index);
    ring_release(ring, index + 1);
    uint32_t n = ring->n_slots - 1;
    uint32_t *sites = calloc(n, sizeof *sites);
    uint64_t *sizes = calloc(n, sizeof *sizes), *payloads = calloc(n, sizeof *payloads);
    ck_assert(sites && sizes && payloads);
    ck_assert_int_eq(
        ring_reserve_launch(ring, process.next_launch + 1, sites, sizes, n, &index, payloads), 0);
    free(sites);
    free(sizes);
    free(payloads);
}

static void stuck(int signal)
{
    static const char words[] = "test_tickets: the schedule stands still\n";
    (void)signal;
    if (write(2, words, sizeof words - 1))
        abort();
}

START_TEST(random_schedules_of_launches_account_for_every_record)
{
    uint64_t seed = (uint64_t)_i * 7919 + 22;
    signal(SIGALRM, stuck);
    alarm(STUCK_S);
    set_up(&seed);
    ck_assert_int_eq(drain_start(&world.arena), 0);
    device_start(&world.arena, kit_next(&seed));
    for (int i = 0; i < N_HOSTS; i++)
        ck_assert_int_eq(pthread_create(&world.hosts[i].thread, NULL, host_main, &world.hosts[i]),
                         0);
    for (int i = 0; i < N_HOSTS; i++)
        pthread_join(world.hosts[i].thread, NULL);
    device_finish();
    ck_assert(drain_stop(&world.arena, STUCK_S / 2 * SECOND, DMI_DROP_EXIT_TIMEOUT));
    alarm(0);
    ck_assert_uint_eq(process.active, 0);
    check_account();
    if (kit.fail_copy_at == UINT64_MAX)
        check_fates();
    check_ring_is_whole();
    tear_down();
}
END_TEST

/* test_tickets [SCHEDULES] */
int main(int argc, char **argv)
{
    int n_schedules = argc > 1 ? atoi(argv[1]) : 40;
    Suite *suite = suite_create("tickets");
    TCase *random = tcase_create("random");
    tcase_set_timeout(random, STUCK_S + 10);
    tcase_add_loop_test(random, random_schedules_of_launches_account_for_every_record, 0,
                        n_schedules);
    suite_add_tcase(suite, random);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
