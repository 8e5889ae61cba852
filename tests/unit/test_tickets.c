/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches, eager ones and of graphs with several copies, from the reservation in front of them to the
 * record after them, under random schedules (ThreadSanitizer): the library's own launch path, ring and
 * drain, on a model of driver and device. Some launches are refused by the driver, some copies never
 * run, some do not fit. Whatever happens: every record that the spec wants of a launch that ran is
 * captured once, with its own bytes, or is a counted drop; nothing stalls; the ring comes back whole.
 */
#include "preload/capture/said.h"
#include "preload/capture/step.h"
#include "preload/context/device.h"
#include "preload/context/launch_records.h"
#include "preload/context/lifetime.h"
#include "preload/eager/launch.h"
#include "preload/graph/exec.h"
#include "preload/graph/instrument.h"
#include "preload/graph/launch.h"
#include "tests/unit/drain_kit.h"
#include "tests/unit/tickets_device.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define N_HOSTS    3 /* threads of the engine's that launch */
#define N_EXECS    2 /* each has */
#define N_KERNELS  3 /* each has: two with one tensor, one with two */
#define HOST_SITES 4
#define N_SITES    (N_HOSTS * HOST_SITES)
#define N_LAUNCHES 24 /* each makes */
#ifdef __SANITIZE_THREAD__
#define STUCK_S 240
#else
#define STUCK_S 60
#endif

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
        *buffer[DEVICE_STREAMS]; /* of eager launches: what follows on the stream runs later */
    /* of launches that the driver took */
    uint64_t wanted[HOST_SITES]; /* records */
    uint64_t refused;            /* records for which there was no place, or no copy */
    uint64_t unfit;              /* records of eager launches that the ring never holds at once */
};

static struct world {
    struct context *context;
    uint64_t *seed; /* while it is set up; NULL: a large ring */
    struct host hosts[N_HOSTS];
    uint32_t max_bytes; /* of a tensor */
    uint64_t n_eager;   /* atomic */
    uint8_t off[N_SITES + 1];
    /* encoder only */
    uint64_t n_appends, fail_append_at, last_launch, n_wrong;
} world;

/* ------------------------------------------------------------------------- steps */

/*
 * The batch of step number q has BATCH rows, of which some are padding unless 4 divides q: the last ones, or some in between. Tensors of more rows are none of that batch.
 * Row 0 is nobody's padding, so no record is empty.
 */
#define BATCH 64u

static bool is_padding(uint64_t step, uint64_t row)
{
    return step % 4 == 3 ? row % 5 == 1 : step % 4 && row >= BATCH / 2 / (step % 4);
}

/* Any thread of the engine's may say one at any time. */
static void say_step(uint64_t sequence, uint32_t flags)
{
    struct dmi_span spans[BATCH];
    uint32_t n = 0;
    for (uint32_t r = 0; r < BATCH; r++)
        spans[n++] = (struct dmi_span){ .request_id = is_padding(sequence, r) ? NULL : "r",
                                        .first_position = r,
                                        .first_row = r,
                                        .n_tokens = 1,
                                        .flags = is_padding(sequence, r) ? DMI_SPAN_PADDING : 0 };
    struct dmi_step step = { .size = sizeof step,
                             .version = DMI_STEP_VERSION,
                             .step = sequence,
                             .n_rows = BATCH,
                             .n_spans = n,
                             .span_size = sizeof spans[0],
                             .flags = flags,
                             .spans = spans };
    struct step *rows = step_new(sequence, &step, said_is_over);
    ck_assert(rows);
    ck_assert_int_eq(said_begins(&step, sequence, rows), 0);
}

/* Is the @i-th row of the record one that its step keeps, after the one before? */
static bool row_is_kept(const struct run_record *r, uint32_t i)
{
    if (!r->kept) /* a tensor larger than the batch, without a step, or that has no padding */
        return r->step == SESSION_NO_STEP || r->dims[0] > BATCH || r->dims[0] == 1 ||
               r->step % 4 == 0 || (r->step % 4 < 3 && r->dims[0] <= BATCH / 2 / (r->step % 4));
    return r->kept[i] < BATCH && !is_padding(r->step, r->kept[i]) &&
           (i == 0 ? r->kept[0] == 0 : r->kept[i] > r->kept[i - 1]);
}

/* ------------------------------------------------------------------------- in the library's place */

int kit_append(const struct run_record *records, size_t n_records)
{
    if (++world.n_appends == world.fail_append_at)
        return -ENOSPC;
    for (size_t i = 0; i < n_records; i++) {
        const struct run_record *r = &records[i];
        const unsigned char *data = r->data;
        bool good = r->launch >= world.last_launch && r->launch < DEVICE_LEDGER &&
                    r->site < N_SITES && r->n_dims == 1 && r->dims[0] == r->n_bytes &&
                    r->n_bytes <= world.max_bytes;
        uint64_t seed = good ? atomic_load_relaxed(&device.fate[r->launch].seed) : 0;
        for (uint32_t k = 0; good && k < r->n_bytes; k++)
            good = row_is_kept(r, k) && data[k] == device_pattern(seed ? seed : r->launch, r->site,
                                                                  r->kept ? r->kept[k] : k);
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

void *driver_real_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

/* ------------------------------------------------------------------------- the engine's kernels */

/* What preload/function/functions.c keeps hangs on a table in mapped memory, where LeakSanitizer does not look. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:functions_add\n";
}

/* Kernel k of host h is named hHkK; the last one's second tensor lies after its first. */
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
            funcs[h][k] = functions_add(spec, &functions[h][k], FUNC_FUNCTION, name, NULL);
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
    struct session_call call;
    session_enter(&call);
    exec_kernel_changed(g->exec, node, &k);
    session_leave(&call);
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
    x->plan.kernels[x->plan.n_kernels++] = (struct graph_kernel){
        .app = (CUgraphNode)&d->engine[i],
        .node = (CUgraphNode)&d->engine[i],
        .enabled = true,
        .ordered = true,
        .func = funcs[h->number][kernel],
        .context = world.context,
        .first_action = n_tensors[kernel] ? x->plan.n_actions : PLAN_NONE,
    };
    for (uint32_t t = 0; t < n_tensors[kernel]; t++) {
        struct device_node *node = &d->copy[d->n_copies++];
        struct graph_action *c = &x->plan.actions[x->plan.n_actions++];
        struct action_kernel k;
        x->plan.nodes[x->plan.n_nodes].node = (CUgraphNode)node;
        *c = (struct graph_action){ .number = x->plan.n_nodes++,
                                    .next =
                                        t + 1 < n_tensors[kernel] ? x->plan.n_actions : PLAN_NONE,
                                    .site = d->engine[i].engine.site + t,
                                    .left = DROP_NONE,
                                    .drop = DROP_NONE };
        c->operand = (struct operand){ .site = c->site, .drop = DROP_NONE };
        *node = (struct device_node){ .kind = NODE_COPY, .enabled = true, .behind = i };
        instrument_kernel(&x->plan, c, &k);
        memcpy(&node->copy, k.param, sizeof node->copy);
    }
}

/* What preload/graph/instrument.c and instantiate would have built: one to three kernels that wait for nothing but open. */
static void make_graph(struct host *h, struct graph *g)
{
    g->exec = calloc(1, sizeof *g->exec);
    g->device = calloc(1, sizeof *g->device);
    ck_assert(g->exec && g->device);
    struct exec *x = g->exec;
    struct device_exec *d = g->device;
    x->handle = (CUgraphExec)d;
    x->state.memory = (CUdeviceptr)(uintptr_t)&d->state;
    static_assert(offsetof(struct device_exec, marks) ==
                      offsetof(struct device_exec, state) + sizeof d->state,
                  "as preload/graph/instrument.c has it");
    x->plan = (struct graph_plan){ .context = world.context,
                                   .state = x->state.memory,
                                   .refused = DROP_NONE,
                                   .n_tickets = 1,
                                   .close.node = (CUgraphNode)&d->close,
                                   .epoch = session.memory_epoch };
    x->empty = true;
    x->plan.kernels = calloc(DEVICE_KERNELS, sizeof *x->plan.kernels);
    x->plan.actions = calloc(DEVICE_COPIES, sizeof *x->plan.actions);
    x->plan.nodes = calloc(DEVICE_COPIES, sizeof *x->plan.nodes);
    x->plan.opens = calloc(1, sizeof *x->plan.opens);
    x->scratch.items = calloc(DEVICE_COPIES, sizeof *x->scratch.items);
    ck_assert(x->plan.kernels && x->plan.actions && x->scratch.items);
    ck_assert(x->plan.nodes && x->plan.opens);
    x->plan.opens[0].node = (CUgraphNode)&d->open;
    d->open =
        (struct device_node){ .kind = NODE_OPEN, .enabled = true, .open.state = x->state.memory };
    d->close = (struct device_node){ .kind = NODE_CLOSE,
                                     .enabled = true,
                                     .close = { .state = x->state.memory,
                                                .marks = (uintptr_t)d->marks,
                                                .desc = world.context->desc_device,
                                                .n_tickets = 1,
                                                .n_slots = world.context->ring.n_slots } };
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
    free(g->exec->plan.kernels);
    free(g->exec->plan.actions);
    free(g->exec->plan.nodes);
    free(g->exec->plan.opens);
    free(g->exec->scratch.items);
    repeat_deinit(&g->exec->repeat);
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

static uint32_t count_in(const struct admission_launch *l, enum admission_state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n += l->items[i].state == state;
    return n;
}

/* @same: as it was launched last. */
static void launch_graph(struct host *h, struct graph *g, bool same)
{
    struct graph_job job;
    struct session_call call;
    struct device_exec *d = g->device;
    for (uint32_t i = 0; i < d->n_engine && !same; i++) {
        if (any(&h->seed, 2))
            set_params(h, g, i, any_size(&h->seed));
        if (any(&h->seed, 12)) {
            bool on = !g->exec->plan.kernels[i].enabled;
            driver_table.cuGraphNodeSetEnabled(g->exec->handle, (CUgraphNode)&d->engine[i], on);
            exec_node_enabled(g->exec, (CUgraphNode)&d->engine[i], on);
        }
    }
    CUstream stream = any_stream(&h->seed);
    bool armed = session_enter(&call);
    graph_before(g->exec, (struct stream){ stream, false }, armed, &job);
    session_pause(&call);
    kit_nap(&h->seed);
    bool refuse = refuses(&h->seed);
    uint32_t skip = any(&h->seed, 3) ? (uint32_t)(kit_next(&h->seed) & kit_next(&h->seed)) : 0;
    uint32_t n_reserved =
        job.repeats ? job.launch.records->n : count_in(&job.launch, ADMISSION_RESERVED);
    if (!refuse)
        device_launch_graph(d, stream, n_reserved ? job.launch.number : 0, skip);
    session_resume(&call);
    graph_after(g->exec, &job, refuse ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS);
    session_leave(&call);
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_engine; i++)
        if (d->engine[i].enabled)
            n += want(h, g->kernel[i], g->n[i], !refuse);
    if (!refuse)
        h->refused += n - n_reserved;
}

static void launch_kernel(struct host *h)
{
    struct eager_job job;
    struct session_call call;
    uint32_t kernel = (uint32_t)(kit_next(&h->seed) % N_KERNELS), n = any_size(&h->seed);
    CUstream stream = any_stream(&h->seed);
    unsigned char *out = h->buffer[(uintptr_t)stream - 1];
    void *params[] = { &out, &n };
    struct eager_launch l = { .function = (CUfunction)&functions[h->number][kernel],
                              .grid = { 1, 1, 1 },
                              .block = { 1, 1, 1 },
                              .stream = { stream, false },
                              .kernel_params = params };
    struct engine_kernel k = kernel_of(h, kernel, out, n);
    const struct func *func = funcs[h->number][kernel];
    session_enter(&call);
    /* the numbers of pieces come later than the kernel: what it writes says a number of the launch's own */
    device_eager_seed = 1 + atomic_add_relaxed(&world.n_eager, 1);
    k.seed[0] = k.seed[1] = device_eager_seed;
    eager_before(&l, func, &job);
    if (job.in_pieces)
        atomic_store_relaxed(&device.in_pieces, true);
    session_pause(&call);
    kit_nap(&h->seed);
    bool refuse = refuses(&h->seed);
    if (!refuse)
        device_launch_kernel(&k, stream);
    session_resume(&call);
    eager_after(&l, &job, refuse ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS);
    session_leave(&call);
    uint32_t n_wanted = want(h, kernel, n, !refuse);
    if (refuse)
        return;
    h->refused += count_in(&job.launch, ADMISSION_DROPPED);
    if (n_wanted * ((n + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN) > world.context->ring.n_bytes)
        h->unfit += n_wanted;
}

/* As dmi_site_enable() does; each host has sites of its own. */
static void switch_a_site(struct host *h)
{
    uint64_t site = h->number * HOST_SITES + kit_next(&h->seed) % HOST_SITES;
    atomic_store_relaxed(&session.off[site], !session.off[site]);
    atomic_add_acq_rel(&session.switches, 1);
}

static void *host_main(void *arg)
{
    struct host *h = arg;
    for (int i = 0; i < N_LAUNCHES; i++) {
        if (any(&h->seed, 10))
            switch_a_site(h);
        if (any(&h->seed, 6))
            say_step(atomic_add_relaxed(&session.next_step, 1),
                     any(&h->seed, 3)   ? 0
                     : any(&h->seed, 2) ? DMI_STEP_OF_THREAD
                                        : DMI_STEP_OF_THREAD | DMI_STEP_PAUSES);
        if (any(&h->seed, 30))
            said_ends();
        struct graph *g = &h->graphs[kit_next(&h->seed) % N_EXECS];
        if (any(&h->seed, 3))
            launch_kernel(h);
        else
            launch_graph(h, g, false);
        for (uint64_t n = kit_next(&h->seed) % 4; n; n--) {
            say_step(atomic_add_relaxed(&session.next_step, 1), DMI_STEP_OF_THREAD);
            launch_graph(h, g, true);
        }
        kit_nap(&h->seed);
    }
    return NULL;
}

/* ------------------------------------------------------------------------- one schedule */

/* The capture context's side on the device: a ring of any size. */
int device_init(struct err *err, struct context *c)
{
    uint64_t *seed = world.seed;
    uint32_t n_slots = RING_MIN_SLOTS << (seed ? kit_next(seed) % 10 : 12);
    uint64_t n_bytes = RING_MIN_BYTES << (seed ? kit_next(seed) % 12 : 18);
    n_bytes += seed ? kit_next(seed) % 4 * RING_ALIGN : 0;
    struct dmi_desc *desc = calloc(n_slots, sizeof *desc);
    struct ring_slot *slots = calloc(n_slots, sizeof *slots);
    c->payload = (CUdeviceptr)(uintptr_t)malloc(n_bytes);
    ck_assert(desc && slots && c->payload);
    ck_assert_int_eq(ring_init(&c->ring, desc, slots, n_slots, n_bytes), 0);
    c->desc_device = (CUdeviceptr)(uintptr_t)desc;
    /* small, so that lists wait for their room */
    uint32_t list_bytes = (BATCH << (seed ? kit_next(seed) % 6 : 10)) * sizeof(uint32_t);
    uint32_t *lists = malloc(list_bytes);
    ck_assert(lists && row_lists_init(&c->row_lists, lists, 0, list_bytes) == 0);
    c->lists_device = (uintptr_t)lists;
    c->kernels =
        (struct context_kernels){ .open = (CUfunction) "open",
                                  .reopen = (CUfunction) "reopen",
                                  .close = (CUfunction) "close",
                                  .actions = { (CUfunction) "copy", (CUfunction) "copy_graph" } };
    world.max_bytes = (uint32_t)(n_bytes + n_bytes / 4);
    (void)err;
    return 0;
}

uint64_t device_free_bytes(void)
{
    return UINT64_MAX;
}

void device_give_back(struct context *c)
{
    (void)c;
}

void device_forget(struct context *c)
{
    said_ends(); /* the threads that said others have ended */
    free(c->row_lists.map);
    row_lists_deinit(&c->row_lists);
    free(c->ring.desc);
    free(c->ring.slots);
    free((void *)(uintptr_t)c->payload);
}

/* @seed NULL: nothing is left to chance. */
static void prepare(uint64_t *seed)
{
    kit_reset(N_SITES);
    device_install();
    memset(&world, 0, sizeof world);
    memset(&device, 0, sizeof device);
    session.armed = 1;
    session.next_launch = DMI_SEQ_FIRST;
    session.memory_epoch = 1;
    session.off = world.off;
    world.fail_append_at = UINT64_MAX;
    if (!spec)
        load_spec();
    session.spec = spec;
    session_set_overload(&spec->overload);
    world.seed = seed;
    world.context = context_prepare();
    ck_assert(world.context && context_refusal(world.context) == DROP_NONE);
}

static void set_up(uint64_t *seed)
{
    prepare(seed);
    /* whoever waits so long for room does so in vain */
    spec->overload.mode = any(seed, 2) ? OVERLOAD_COMPLETE : OVERLOAD_DROP;
    spec->overload.wait_ns = STUCK_S / 2 * SECOND;
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

static void end_context(void)
{
    struct context_call end;
    context_call_starts(
        &end, &(struct context_reference){ .handle = world.context->handle, .last = true }, 0);
    ck_assert(context_gone(world.context));
    context_call_ends(&end, context_call_returns(&end));
    ck_assert_int_eq(context_state(world.context), CONTEXT_FREE);
}

static void tear_down(void)
{
    for (uint32_t i = 0; i < N_HOSTS; i++) {
        for (int s = 0; s < DEVICE_STREAMS; s++)
            free(world.hosts[i].buffer[s]);
        for (int g = 0; g < N_EXECS; g++)
            free_graph(&world.hosts[i].graphs[g]);
    }
    end_context();
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

/* All that can be said of a record, whatever failed. */
static void check_accounting(void)
{
    for (uint32_t i = 0; i < N_SITES; i++) {
        const struct dmi_site_counters *c = &session.counters->sites[i];
        struct dmi_tally sum = sum_of(c);
        ck_assert_uint_eq(c->expected.records, sum.records);
        ck_assert_uint_eq(c->expected.rows, sum.rows);
        ck_assert_uint_eq(c->expected.bytes, sum.bytes);
    }
    for (uint64_t seq = 0; seq < session.next_launch && seq < DEVICE_LEDGER; seq++)
        ck_assert_uint_eq(device.fate[seq].captured & ~device.fate[seq].published, 0);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_MISMATCH) + kit_dropped(DMI_DROP_EXIT_TIMEOUT), 0);
}

/* And where the context is well: what was reserved is captured, or was not run. */
static void check_fates(void)
{
    uint64_t refused = 0, unfit = 0, published = 0;
    for (uint32_t i = 0; i < N_SITES; i++) {
        const struct dmi_site_counters *c = &session.counters->sites[i];
        ck_assert_uint_eq(c->expected.records, world.hosts[i / HOST_SITES].wanted[i % HOST_SITES]);
        ck_assert_uint_eq(c->dropped[DMI_DROP_NOT_RUN].records, device.skipped[i]);
        uint64_t taken = c->captured.records + c->dropped[DMI_DROP_WRITE_FAILED].records;
        ck_assert(taken == device.published[i] ||
                  (device.in_pieces && taken < device.published[i]));
        published += device.published[i];
    }
    for (int i = 0; i < N_HOSTS; i++) {
        refused += world.hosts[i].refused;
        unfit += world.hosts[i].unfit;
    }
    ck_assert_uint_eq(kit_dropped(DMI_DROP_RING_FULL) + kit_dropped(DMI_DROP_TOO_LARGE) +
                          kit_dropped(DMI_DROP_COPY_FAILED),
                      refused);
    if (spec->overload.mode == OVERLOAD_COMPLETE)
        ck_assert_uint_le(kit_dropped(DMI_DROP_RING_FULL), unfit);
    if (world.fail_append_at == UINT64_MAX && !device.in_pieces)
        ck_assert_uint_eq(kit_captured(), published);
}

/* One record takes all of its bytes, one launch all of its slots. */
static void check_ring_is_whole(void)
{
    struct ring *ring = &world.context->ring;
    uint64_t index, at;
    ck_assert_uint_eq(ring_in_flight(ring), 0);
    ck_assert_int_eq(ring_reserve(ring, session.next_launch, 0, ring->n_bytes, &index, &at), 0);
    ring_cancel(ring, index);
    ring_release(ring, index + 1);
    ck_assert_int_eq(ring_reserve_launch(ring, session.next_launch + 1,
                                         ring->n_slots * DMI_CLOSE_RECORDS, ring->n_bytes, &index,
                                         &at),
                     0);
    ring_release(ring,
                 index + ring->n_slots); /* they have no notes, which the context's end looks at */
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
    device_start(world.context, kit_next(&seed));
    for (int i = 0; i < N_HOSTS; i++)
        ck_assert_int_eq(pthread_create(&world.hosts[i].thread, NULL, host_main, &world.hosts[i]),
                         0);
    for (int i = 0; i < N_HOSTS; i++)
        pthread_join(world.hosts[i].thread, NULL);
    device_finish();
    ck_assert(context_stop(world.context, STUCK_S / 2 * SECOND, DMI_DROP_EXIT_TIMEOUT));
    alarm(0);
    ck_assert_uint_eq(session.active, 0);
    check_accounting();
    if (kit.fail_copy_at == UINT64_MAX)
        check_fates();
    check_ring_is_whole();
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------------- what a launch costs */

enum { MANY = 252, TURNS = 20, LAUNCHES = 20 };

/* MANY launches of one kernel with one tensor of BATCH rows. Nobody looks at the parameters of its nodes. */
static struct exec *make_large(struct device_node *nodes)
{
    prepare(NULL);
    spec->overload.mode = OVERLOAD_COMPLETE;
    spec->overload.wait_ns = STUCK_S / 2 * SECOND;
    device.context = world.context;
    static unsigned char tensor[BATCH];
    unsigned char *out = tensor;
    uint32_t n = sizeof tensor;
    void *params[] = { &out, &n };
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = (CUfunction)&functions[0][0],
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 1,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params };
    struct exec *x = calloc(1, sizeof *x);
    ck_assert(x);
    x->empty = true;
    x->plan = (struct graph_plan){ .context = world.context,
                                   .refused = DROP_NONE,
                                   .n_tickets = 1,
                                   .n_kernels = MANY,
                                   .n_actions = MANY,
                                   .n_nodes = MANY,
                                   .epoch = session.memory_epoch };
    x->plan.kernels = calloc(MANY, sizeof *x->plan.kernels);
    x->plan.actions = calloc(MANY, sizeof *x->plan.actions);
    x->plan.nodes = calloc(MANY, sizeof *x->plan.nodes);
    x->plan.opens = calloc(1, sizeof *x->plan.opens);
    x->scratch.items = calloc(MANY, sizeof *x->scratch.items);
    ck_assert(x->plan.kernels && x->plan.actions && x->plan.nodes);
    ck_assert(x->plan.opens && x->scratch.items);
    nodes[MANY].kind = NODE_OPEN;
    nodes[MANY + 1].kind = NODE_CLOSE;
    x->plan.opens[0].node = (CUgraphNode)&nodes[MANY];
    x->plan.close.node = (CUgraphNode)&nodes[MANY + 1];
    for (uint32_t i = 0; i < MANY; i++) {
        nodes[i].kind = NODE_COPY;
        x->plan.nodes[i].node = (CUgraphNode)&nodes[i];
        x->plan.actions[i] = (struct graph_action){
            .number = i, .next = PLAN_NONE, .left = DROP_NONE, .drop = DROP_NONE
        };
        x->plan.kernels[i] = (struct graph_kernel){ .enabled = true,
                                                    .ordered = true,
                                                    .func = funcs[0][0],
                                                    .context = world.context,
                                                    .first_action = i };
        graph_plan_action(&x->plan, &x->plan.actions[i], funcs[0][0], &k);
    }
    return x;
}

/* What dmi_close does where every copy has run. @off: by how much the first slot's sum is. */
static void publish_all(const struct admission_launch *l, uint32_t off)
{
    for (uint32_t i = 0, first = 0; first < l->records->n; i++, first += DMI_CLOSE_RECORDS) {
        struct dmi_close_desc record = { .ready = l->number, .site = DMI_SITE_CLOSE };
        for (uint32_t k = 0; k < DMI_CLOSE_RECORDS && first + k < l->records->n; k++) {
            const struct launch_record *r = &l->records->all[first + k];
            record.ran[k / 32] |= 1u << k % 32;
            record.sum += dmi_copy_sum(r->site, r->n_bytes);
        }
        record.sum += i ? 0 : off;
        ring_publish_close(ring_desc(&l->context->ring, l->slot + i), &record);
    }
}

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/*
 * What LAUNCHES of the exec take, each in a step of its own: CPU nanoseconds of the library, a launch. Without @repeats every other one has padding, and so other rows
 * than those before and after; the last one has none.
 */
static double launch_ns(struct exec *x, bool repeats)
{
    uint64_t ns = 0;
    for (int i = 0; i < LAUNCHES; i++) {
        struct graph_job job;
        struct session_call call;
        uint64_t step = session.next_step, kind = !repeats && i % 2 == 0;
        step += (kind - step) % 4;
        session.next_step = step + 1;
        say_step(step, DMI_STEP_OF_THREAD);
        uint64_t start = thread_ns();
        bool armed = session_enter(&call);
        graph_before(x, (struct stream){ NULL, false }, armed, &job);
        ns += thread_ns() - start;
        ck_assert_uint_eq(job.repeats, repeats);
        ck_assert_uint_eq(job.launch.records->n, MANY);
        publish_all(&job.launch, 0);
        start = thread_ns();
        graph_after(x, &job, CUDA_SUCCESS);
        session_leave(&call);
        ns += thread_ns() - start;
    }
    return (double)ns / LAUNCHES;
}

static int order(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void free_large(struct exec *x)
{
    free(x->plan.kernels);
    free(x->plan.actions);
    free(x->plan.nodes);
    free(x->plan.opens);
    free(x->scratch.items);
    repeat_deinit(&x->repeat);
    free(x);
    end_context();
}

/* What the device copied is not what was reserved: nothing that the slot tells of is taken. */
START_TEST(a_launch_whose_sums_differ_is_a_mismatch)
{
    static struct device_node nodes[MANY + 2];
    struct exec *x = make_large(nodes);
    struct graph_job job;
    struct session_call call;
    say_step(4, DMI_STEP_OF_THREAD);
    bool armed = session_enter(&call);
    graph_before(x, (struct stream){ NULL, false }, armed, &job);
    publish_all(&job.launch, 1);
    graph_after(x, &job, CUDA_SUCCESS);
    session_leave(&call);
    ck_assert(context_stop(world.context, STUCK_S / 2 * SECOND, DMI_DROP_EXIT_TIMEOUT));
    ck_assert_uint_eq(kit_dropped(DMI_DROP_MISMATCH), DMI_CLOSE_RECORDS);
    ck_assert_uint_eq(kit_captured(), MANY - DMI_CLOSE_RECORDS);
    free_large(x);
}
END_TEST

START_TEST(a_launch_that_repeats_the_last_one_costs_a_tenth)
{
    static struct device_node nodes[MANY + 2];
    double repeated[TURNS], other[TURNS];
    struct exec *x = make_large(nodes);
    for (int i = 0; i < TURNS; i++) {
        other[i] = launch_ns(x, false);
        repeated[i] = launch_ns(x, true);
    }
    ck_assert(context_stop(world.context, STUCK_S / 2 * SECOND, DMI_DROP_EXIT_TIMEOUT));
    ck_assert_uint_eq(kit_captured(), 2 * TURNS * LAUNCHES * MANY);
    ck_assert_uint_eq(session.counters->sites[0].expected.records, 2 * TURNS * LAUNCHES * MANY);
    qsort(repeated, TURNS, sizeof repeated[0], order);
    qsort(other, TURNS, sizeof other[0], order);
    printf("%d sites: %.2f us a launch, one that repeats the last %.2f us\n", MANY,
           other[TURNS / 2] / 1e3, repeated[TURNS / 2] / 1e3);
    ck_assert(10 * repeated[TURNS / 2] <= other[TURNS / 2]);
    free_large(x);
}
END_TEST

/* test_tickets [SCHEDULES [FIRST]] */
int main(int argc, char **argv)
{
    const char *seeds = getenv("DMI_TEST_SEEDS");
    int n_schedules = seeds ? atoi(seeds) : argc > 1 ? atoi(argv[1]) : 40;
    int first = argc > 2 ? atoi(argv[2]) : 0;
    Suite *suite = suite_create("tickets");
    TCase *random = tcase_create("random");
    tcase_set_timeout(random, STUCK_S + 10);
    tcase_add_loop_test(random, random_schedules_of_launches_account_for_every_record, first,
                        first + n_schedules);
    tcase_add_test(random, a_launch_whose_sums_differ_is_a_mismatch);
    suite_add_tcase(suite, random);
#ifndef __SANITIZE_THREAD__ /* which costs more than what is timed */
    TCase *cost = tcase_create("cost");
    tcase_set_timeout(cost, STUCK_S + 10);
    tcase_add_test(cost, a_launch_that_repeats_the_last_one_costs_a_tenth);
    suite_add_tcase(suite, cost);
#endif
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
