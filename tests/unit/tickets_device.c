/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tickets_device.h"

#include "tests/unit/drain_kit.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define N_WORKERS 3

enum stage { WAITING = 0, RUNNING = 1, DONE = 2 };

/* A launch on a stream: its nodes as they were when it was launched. */
struct op {
    struct op *next;
    struct device_exec *exec; /* NULL: one kernel */
    uint64_t turn;            /* among the launches of @exec */
    uint32_t skip;
    uint32_t n_nodes, n_left;
    struct {
        enum stage stage;
        struct device_node node;
    } at[];
};

__thread uint64_t device_eager_seed;
struct device device;

static struct {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t moved;
    struct op *first[DEVICE_STREAMS], *last[DEVICE_STREAMS];
    uint64_t n_ops;
    bool closed;
    pthread_t workers[N_WORKERS];
    uint64_t seeds[N_WORKERS];
} queues;

/* ------------------------------------------------------------------------- kernels */

static void note_published(uint64_t seq, uint32_t site)
{
    atomic_add_relaxed(&device.published[site], 1);
    ck_assert_uint_lt(seq, DEVICE_LEDGER);
    __atomic_fetch_or(&device.fate[seq].published, (uint16_t)(1u << site), __ATOMIC_RELAXED);
}

static void kernel_engine(const struct engine_kernel *k)
{
    for (uint32_t t = 0; t < k->n_tensors; t++)
        for (uint32_t i = 0; i < k->n; i++)
            k->out[(size_t)t * k->n + i] = device_pattern(k->seed[t], k->site + t, i);
}

/* @list: of @n_rows rows, NULL: the first ones */
static void gather(const struct dmi_gather *g, const uint32_t *list, uint32_t n_rows,
                   unsigned char *to)
{
    const unsigned char *from = (const unsigned char *)(uintptr_t)g->src;
    ck_assert_uint_eq(g->count[1] * g->count[2] * g->count[3], 1);
    ck_assert(n_rows <= g->count[0] && (n_rows == 1 || g->stride[0] == g->run_bytes));
    if (!list)
        memcpy(to, from, (size_t)n_rows * g->run_bytes);
    for (uint32_t i = 0; list && i < n_rows; i++) {
        ck_assert_uint_lt(list[i], g->count[0]);
        memcpy(to + (size_t)i * g->run_bytes, from + (size_t)list[i] * g->run_bytes, g->run_bytes);
    }
}

static void kernel_eager_copy(const struct dmi_copy *copy)
{
    gather(&copy->gather, (const uint32_t *)(uintptr_t)copy->rows, copy->record.n_rows,
           (unsigned char *)(uintptr_t)copy->payload + copy->record.payload);
    note_published(copy->record.ready, copy->record.site);
    ring_publish((struct dmi_desc *)(uintptr_t)copy->desc, &copy->record);
}

static void kernel_open(const struct dmi_open *open)
{
    struct dmi_ticket *state = (struct dmi_ticket *)(uintptr_t)open->state;
    if (!open->ticket.n_actions || open->ticket.seq != state->seq)
        *state = open->ticket;
}

static void kernel_reopen(const struct dmi_reopen *again)
{
    struct dmi_ticket *state = (struct dmi_ticket *)(uintptr_t)again->state;
    if (again->seq == state->seq)
        return;
    state->seq = again->seq;
    state->n_actions = again->n_actions;
    state->close_slot = again->close_slot;
    state->payload = again->payload;
    atomic_add_relaxed(&device.n_again, 1);
}

static void kernel_copy(const struct dmi_graph_copy *copy, bool skip)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)(uintptr_t)copy->state;
    if (copy->number >= state->n_actions || state->offset16[copy->number] == DMI_NOT_WANTED)
        return;
    if (skip) {
        atomic_add_relaxed(&device.skipped[copy->site], 1);
        return;
    }
    struct dmi_rows rows = { .at = DMI_ROWS_FIRST, .n_rows = copy->n_rows };
    if (state->rows_of[copy->number] != DMI_ROWS_ALL)
        rows = state->rows[state->rows_of[copy->number]];
    const uint32_t *lists = (const uint32_t *)(uintptr_t)copy->lists;
    uint64_t n_bytes = (uint64_t)rows.n_rows * copy->row_bytes;
    gather(&copy->gather, rows.at == DMI_ROWS_FIRST ? NULL : lists + rows.at, rows.n_rows,
           (unsigned char *)(uintptr_t)state->payload +
               (uint64_t)state->offset16[copy->number] * RING_ALIGN);
    note_published(state->seq, copy->site);
    *(struct dmi_copy_mark *)(uintptr_t)copy->mark =
        (struct dmi_copy_mark){ .seq = state->seq, .sum = dmi_copy_sum(copy->site, n_bytes) };
}

static void kernel_close(const struct dmi_close *close)
{
    struct dmi_ticket *state = (struct dmi_ticket *)(uintptr_t)close->state;
    const struct dmi_copy_mark *marks = (const struct dmi_copy_mark *)(uintptr_t)close->marks;
    if (!state->n_actions)
        return;
    struct dmi_close_desc record = { .ready = state->seq, .site = DMI_SITE_CLOSE };
    for (uint32_t i = 0; i < state->n_actions; i++) {
        if (state->offset16[i] >= DMI_NO_PAYLOAD || marks[i].seq != state->seq)
            continue;
        record.ran[state->slot[i] / 32] |= 1u << state->slot[i] % 32;
        record.sum += marks[i].sum;
    }
    state->n_actions = 0;
    if (state->close_slot != DMI_NO_CLOSE)
        ring_publish_close((struct dmi_desc *)(uintptr_t)close->desc + state->close_slot, &record);
}

static void run_node(const struct device_node *node, bool skip)
{
    if (!node->enabled)
        return;
    switch (node->kind) {
    case NODE_OPEN: node->is_again ? kernel_reopen(&node->again) : kernel_open(&node->open); break;
    case NODE_ENGINE: kernel_engine(&node->engine); break;
    case NODE_COPY: kernel_copy(&node->copy, skip); break;
    case NODE_CLOSE: kernel_close(&node->close); break;
    case NODE_EAGER_COPY: kernel_eager_copy(&node->eager); break;
    }
}

/* ------------------------------------------------------------------------- streams */

/* Have all operations run that @op's node depends on? Under the lock. */
static bool may_run(const struct op *op, uint32_t i)
{
    const struct device_node *node = &op->at[i].node;
    if (op->at[i].stage != WAITING)
        return false;
    if (node->kind == NODE_COPY)
        return op->at[1 + node->behind].stage == DONE;
    if (node->kind == NODE_CLOSE)
        return op->n_left == 1;
    return !op->exec || node->kind == NODE_OPEN || op->at[0].stage == DONE;
}

/* Any node of any stream's oldest launch that may run. Under the lock. Return: NULL, none. */
static struct op *pick(uint64_t *seed, uint32_t *stream, uint32_t *node)
{
    uint64_t s = kit_next(seed), n = kit_next(seed);
    for (uint32_t i = 0; i < DEVICE_STREAMS; i++) {
        *stream = (uint32_t)((s + i) % DEVICE_STREAMS);
        struct op *op = queues.first[*stream];
        if (!op || (op->exec && op->exec->n_finished != op->turn))
            continue;
        for (uint32_t k = 0; k < op->n_nodes; k++) {
            *node = (uint32_t)((n + k) % op->n_nodes);
            if (may_run(op, *node))
                return op;
        }
    }
    return NULL;
}

/* Under the lock. */
static void done(struct op *op, uint32_t stream, uint32_t node)
{
    op->at[node].stage = DONE;
    if (--op->n_left)
        return;
    if (op->exec)
        op->exec->n_finished++;
    queues.first[stream] = op->next;
    queues.n_ops--;
    free(op);
}

static void *worker_main(void *arg)
{
    uint64_t *seed = arg;
    uint32_t stream, node;
    pthread_mutex_lock(&queues.lock);
    while (queues.n_ops || !queues.closed) {
        struct op *op = pick(seed, &stream, &node);
        if (!op) {
            pthread_cond_wait(&queues.moved, &queues.lock);
            continue;
        }
        op->at[node].stage = RUNNING;
        pthread_mutex_unlock(&queues.lock);
        kit_nap(seed);
        const struct device_node *n = &op->at[node].node;
        run_node(n, n->kind == NODE_COPY && (op->skip >> n->copy.number & 1));
        kit_nap(seed);
        pthread_mutex_lock(&queues.lock);
        done(op, stream, node);
        pthread_cond_broadcast(&queues.moved);
    }
    pthread_mutex_unlock(&queues.lock);
    return NULL;
}

void device_start(struct context *context, uint64_t seed)
{
    device.context = context;
    pthread_mutex_init(&queues.lock, NULL);
    pthread_cond_init(&queues.moved, NULL);
    queues.closed = false;
    for (int i = 0; i < N_WORKERS; i++) {
        queues.seeds[i] = kit_next(&seed);
        ck_assert_int_eq(pthread_create(&queues.workers[i], NULL, worker_main, &queues.seeds[i]),
                         0);
    }
}

void device_finish(void)
{
    pthread_mutex_lock(&queues.lock);
    queues.closed = true;
    pthread_cond_broadcast(&queues.moved);
    pthread_mutex_unlock(&queues.lock);
    for (int i = 0; i < N_WORKERS; i++)
        pthread_join(queues.workers[i], NULL);
    pthread_cond_destroy(&queues.moved);
    pthread_mutex_destroy(&queues.lock);
}

/* ------------------------------------------------------------------------- launches */

static struct op *op_new(struct device_exec *exec, uint32_t n_nodes)
{
    struct op *op = calloc(1, sizeof *op + n_nodes * sizeof op->at[0]);
    ck_assert(op);
    op->exec = exec;
    op->n_nodes = op->n_left = n_nodes;
    return op;
}

static void enqueue(struct op *op, CUstream stream)
{
    uint64_t s = (uint64_t)(uintptr_t)stream - 1;
    ck_assert_uint_lt(s, DEVICE_STREAMS);
    pthread_mutex_lock(&queues.lock);
    if (op->exec)
        op->turn = op->exec->n_launched++;
    if (queues.first[s])
        queues.last[s]->next = op;
    else
        queues.first[s] = op;
    queues.last[s] = op;
    queues.n_ops++;
    pthread_cond_broadcast(&queues.moved);
    pthread_mutex_unlock(&queues.lock);
}

void device_launch_graph(struct device_exec *x, CUstream stream, uint64_t seed, uint32_t skip)
{
    struct op *op = op_new(x, 2 + x->n_engine + x->n_copies);
    uint32_t n = 0;
    op->skip = skip;
    op->at[n++].node = x->open;
    for (uint32_t i = 0; i < x->n_engine; i++, n++) {
        op->at[n].node = x->engine[i];
        op->at[n].node.engine.seed[0] = op->at[n].node.engine.seed[1] = seed;
    }
    for (uint32_t i = 0; i < x->n_copies; i++)
        op->at[n++].node = x->copy[i];
    op->at[n].node = x->close;
    enqueue(op, stream);
}

void device_launch_kernel(const struct engine_kernel *kernel, CUstream stream)
{
    struct op *op = op_new(NULL, 1);
    op->at[0].node =
        (struct device_node){ .kind = NODE_ENGINE, .enabled = true, .engine = *kernel };
    enqueue(op, stream);
}

/* ------------------------------------------------------------------------- entry points */

static bool nth(uint64_t *count, uint64_t every)
{
    return every && (atomic_add_relaxed(count, 1) + 1) % every == 0;
}

static CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, CUstream stream,
                              void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    ck_assert_ptr_eq(f, device.context->kernels.actions[0]);
    if (nth(&device.n_copies, device.refuse_copy_every))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    struct op *op = op_new(NULL, 1);
    op->at[0].node.kind = NODE_EAGER_COPY;
    op->at[0].node.enabled = true;
    memcpy(&op->at[0].node.eager, params[0], sizeof op->at[0].node.eager);
    ck_assert_uint_lt(op->at[0].node.eager.record.ready, DEVICE_LEDGER);
    atomic_store_relaxed(&device.fate[op->at[0].node.eager.record.ready].seed, device_eager_seed);
    enqueue(op, stream);
    return CUDA_SUCCESS;
}

static CUresult set_params(CUgraphExec handle, CUgraphNode handle_node,
                           const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    (void)handle;
    struct device_node *node = (struct device_node *)handle_node;
    if (node->kind != NODE_ENGINE && nth(&device.n_params, device.refuse_params_every))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (node->kind == NODE_OPEN)
        node->is_again = k->func == device.context->kernels.reopen;
    if (node->kind == NODE_OPEN && node->is_again) {
        memcpy(&node->again, k->kernelParams[0], sizeof node->again);
    } else if (node->kind == NODE_OPEN) {
        memcpy(&node->open, k->kernelParams[0], sizeof node->open);
    } else if (node->kind == NODE_COPY) {
        memcpy(&node->copy, k->kernelParams[0], sizeof node->copy);
    } else {
        memcpy(&node->engine.out, k->kernelParams[0], sizeof node->engine.out);
        memcpy(&node->engine.n, k->kernelParams[1], sizeof node->engine.n);
    }
    return CUDA_SUCCESS;
}

static CUresult set_enabled(CUgraphExec handle, CUgraphNode node, unsigned on)
{
    (void)handle;
    ((struct device_node *)node)->enabled = on != 0;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* All memory is live here: what lies outside of an allocation is other tests' matter. */
static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    *base = p;
    *size = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

/* void kernel(unsigned char *out, uint32_t n) */
static CUresult param_info(CUfunction f, size_t i, size_t *offset, size_t *size)
{
    (void)f;
    if (i > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = i * 8;
    *size = i ? 4 : 8;
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context)
{
    *context = (CUcontext)&device;
    return CUDA_SUCCESS;
}

void device_install(void)
{
    driver_table.cuCtxGetCurrent = get_current;
    driver_table.cuLaunchKernel = launch_kernel;
    driver_table.cuGraphExecKernelNodeSetParams_v2 = set_params;
    driver_table.cuGraphNodeSetEnabled = set_enabled;
    driver_table.cuStreamIsCapturing = is_capturing;
    driver_table.cuMemGetAddressRange_v2 = address_range;
    driver_table.cuFuncGetParamInfo = param_info;
}
