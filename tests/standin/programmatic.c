/* SPDX-License-Identifier: Apache-2.0 */
#include "programmatic.h"

#include "times.h"

#include "ptx/ptx.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* How long a kernel whose dependents were let go waits for them to run ahead. */
#define AHEAD_NS 3000000

const CUgraphEdgeData programmatic_edge = { .from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                            .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC };

/** struct early - an operation that comes after another's begin or trigger */
struct early {
    struct op *op;
    bool at_begin;
};

static bool is_kernel(const struct op *op)
{
    return op->work && op->work->kind == WORK_KERNEL && !op->work->kernel.cooperative;
}

static void *grown(void *list, int n, size_t size)
{
    return (n & (n - 1)) == 0 ? realloc(list, (size_t)(n ? 2 * n : 1) * size) : list;
}

static bool add_early(struct op *on, struct op *op, bool at_begin)
{
    struct early *list = grown(on->early, on->n_early, sizeof(*list));

    if (!list)
        return false;
    on->early = list;
    on->early[on->n_early++] = (struct early){ op_ref(op), at_begin };
    op->n_pending++;
    return true;
}

static bool add_prior(struct op *op, struct op *on)
{
    struct op **list = grown(op->prior, op->n_prior, sizeof(*list));

    if (!list)
        return false;
    op->prior = list;
    op->prior[op->n_prior++] = op_ref(on);
    return true;
}

void programmatic_depend(struct op *op, struct op *on, const CUgraphEdgeData *data)
{
    bool at_begin = data->from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
    bool waits = data->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;

    if (!on || on->done || on == op)
        return;
    if (!driver.config.delay_seed || !data->from_port || !is_kernel(on) ||
        (waits && !is_kernel(op)) || (waits && !add_prior(op, on))) {
        op_depend(op, on);
        return;
    }
    if (!(at_begin ? on->begun : on->triggered) && !add_early(on, op, at_begin))
        op_depend(op, on);
}

/* Those that waited for no more than this start. */
static void let_go(struct op *op, bool at_begin)
{
    int n = 0;

    for (int i = 0; i < op->n_early; i++) {
        struct early early = op->early[i];

        if (early.at_begin != at_begin) {
            op->early[n++] = early;
            continue;
        }
        early.op->ready_ns = times_given() ? clock_ns() : 0;
        op_release(early.op);
        op_unref(early.op);
    }
    op->n_early = n;
}

/* Until each kernel among them has ended or stands at its griddepcontrol.wait, or for AHEAD_NS. An event tells nothing of who waits for it. */
static void let_run_ahead(struct op **ops, int n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += AHEAD_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    for (int i = 0; i < n; i++) {
        while ((!ops[i]->work || !ops[i]->done) && !ops[i]->stands && queue_pause(ops[i], &until))
            ;
        op_unref(ops[i]);
    }
}

/* The last block of @op has begun, or has let dependents start. */
static void all_blocks(struct op *op, bool at_begin)
{
    struct op **ahead;
    uint64_t state;
    bool stays = op_draw(op, &state) % 2;
    int n = 0;

    pthread_mutex_lock(&driver.lock);
    *(at_begin ? &op->begun : &op->triggered) = true;
    ahead = calloc((size_t)op->n_early + 1, sizeof(struct op *));
    for (int i = 0; ahead && stays && i < op->n_early; i++) {
        if (op->early[i].at_begin == at_begin)
            ahead[n++] = op_ref(op->early[i].op);
    }
    let_go(op, at_begin);
    if (ahead)
        let_run_ahead(ahead, n);
    pthread_mutex_unlock(&driver.lock);
    free(ahead);
}

static void block_begins(void *data)
{
    struct op *op = data;

    if (atomic_fetch_add(&op->n_begun, 1) + 1 == op->n_blocks)
        all_blocks(op, true);
}

static void block_triggers(void *data)
{
    struct op *op = data;

    if (atomic_fetch_add(&op->n_triggered, 1) + 1 == op->n_blocks)
        all_blocks(op, false);
}

static void block_waits(void *data)
{
    pthread_mutex_lock(&driver.lock);
    programmatic_join(data);
    pthread_mutex_unlock(&driver.lock);
}

const struct ptx_dependents *programmatic_begin(struct op *op, uint64_t n_blocks,
                                                struct ptx_dependents *out)
{
    if (!driver.config.delay_seed || !is_kernel(op))
        return NULL;
    op->n_blocks = n_blocks;
    *out = (struct ptx_dependents){
        .begin = block_begins, .trigger = block_triggers, .wait = block_waits, .data = op
    };
    return out;
}

void programmatic_join(struct op *op)
{
    op->stands = op->n_prior > 0;
    if (op->stands)
        queue_tell();
    for (int i = 0; i < op->n_prior; i++)
        queue_wait(op->prior[i]);
}

void programmatic_end(struct op *op)
{
    let_go(op, true);
    let_go(op, false);
    for (int i = 0; i < op->n_prior; i++)
        op_unref(op->prior[i]);
    free(op->early);
    free(op->prior);
    op->early = NULL;
    op->prior = NULL;
    op->n_early = op->n_prior = 0;
}
