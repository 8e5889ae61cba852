/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/attention.h"

#include "analyze/kernel.h"
#include "analyze/operand.h"
#include "analyze/parallel.h"
#include "analyze/spill.h"
#include "core/err.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GOOD_QUERIES                                                                               \
    16 /* that are computed together: fewer take longer, as keys and values come to the processor anew for each group */
#define TASK_QUERIES  16   /* of a head, which one thread computes */
#define NEAR_FLOATS   6144 /* of keys or values, half of the nearest cache of a small processor */
#define LEAST_KEYS    64   /* of a block */
#define MOST_AHEAD    4096 /* queries that are read together: a record may hold many */
#define LEAST_UNASKED ((size_t)3 << 20)
#define MOST_UNASKED  ((size_t)256 << 20)

/* What is computed at present. */
struct attention {
    struct err *err;
    struct plan *plan;
    const struct kernel *kernel;
    struct plan_layer *layer;
    uint32_t *heads; /* that are wanted, of the layer and the KV heads of now */
    size_t n_heads;
    uint32_t kv_first, n_kv;      /* KV heads whose keys and values are in memory */
    size_t most_kv;               /* of these at a time */
    size_t n_keys;                /* of the plan, rounded up: floats of a row */
    size_t n_block;               /* keys of a block */
    size_t n_group;               /* queries that are computed together */
    size_t n_ahead;               /* queries that are read together */
    size_t value_dim;             /* rounded up */
    float *q_read, *z_read;       /* n_ahead rows as they are read */
    bool *z_there;                /* n_ahead */
    float *queries;               /* by head, query */
    float *rows;                  /* by head, query: scores, then weights */
    float *sums;                  /* by head, query: weights times v */
    struct kernel_sums *row_sums; /* by head, query; NULL: not wanted */
    struct operand_block keys, values;
    float *key_room, *value_room; /* of a block that was decoded */
    struct spill kept;            /* where they are blocks: of keys and of values in turn */
    const void *mapped[2]; /* the block of keys, of values, where it is the file's; else NULL */
    size_t ahead;          /* index of the query that q_read begins with */
    size_t first, n;       /* the queries of now, by their index in the plan */
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ------------------------------------------------------------------------- room */

static size_t between(size_t n, size_t least, size_t most)
{
    return n < least ? least : n > most ? most : n;
}

/* The most wanted heads that share one KV head. */
static size_t most_wanted(const struct plan *p)
{
    uint32_t share = p->n_heads / p->n_kv_heads, n = 0;
    size_t most = 1;
    for (size_t i = 0; i < p->n_layers; i++)
        for (uint32_t h = 0; h < p->n_heads; h++) {
            n = (h % share ? n : 0) + p->layers[i].wanted[h];
            most = n > most ? n : most;
        }
    return most;
}

/* Bytes that the caller allows, or else what rows of weights need: six eighths for a good number of them. */
static size_t memory_of(const struct attention *a)
{
    size_t rows = most_wanted(a->plan) * a->n_keys * (GOOD_QUERIES + KERNEL_GROUP) * sizeof(float);
    return a->plan->n_memory ? a->plan->n_memory
                             : between(rows / 6 * 8, LEAST_UNASKED, MOST_UNASKED);
}

/* KV heads that come together: as many as @eighths of the memory hold good numbers of rows of weights for. */
static size_t kv_by_rows(const struct attention *a, size_t eighths, size_t share)
{
    return between(eighths / (share * a->n_keys * GOOD_QUERIES), 1, a->plan->n_kv_heads);
}

/*
 * One eighth of the memory is for what is read ahead. Keys and values stay in five more, and rows of weights have two, where that costs no
 * pass over the run's queries. Else one eighth is for blocks of keys and values, which come from the file anew for each group of queries,
 * and six are for rows.
 */
static void divide_memory(struct attention *a)
{
    const struct plan *p = a->plan;
    size_t eighth = memory_of(a) / 8 / sizeof(float), share = most_wanted(p);
    size_t a_key = p->dim + a->value_dim, a_query = p->n_heads * (p->dim + p->value_dim);
    size_t staying = kv_by_rows(a, 2 * eighth, share), by_keys = 5 * eighth / (a_key * a->n_keys);
    staying = by_keys < staying ? by_keys : staying;
    a->most_kv = kv_by_rows(a, 6 * eighth, share);
    bool stay = staying >= a->most_kv;
    a->n_block = stay ? a->n_keys
                      : between(eighth / (a_key * a->most_kv), LEAST_KEYS, a->n_keys) /
                            KERNEL_LANES * KERNEL_LANES;
    a->n_group = between((stay ? 2 : 6) * eighth / (a->most_kv * share * a->n_keys), KERNEL_GROUP,
                         stay ? GOOD_QUERIES : MOST_AHEAD);
    a->n_group = a->n_group / KERNEL_GROUP * KERNEL_GROUP;
    a->n_ahead = between(eighth / a_query, a->n_group, MOST_AHEAD) / a->n_group * a->n_group;
    if (a->n_ahead > round_up(p->n_queries, a->n_group))
        a->n_ahead = round_up(p->n_queries, a->n_group);
}

static float *floats(size_t a, size_t b, size_t c)
{
    size_t n;
    if (__builtin_mul_overflow(a, b, &n) || __builtin_mul_overflow(n, c, &n))
        return NULL;
    return calloc(n + 1, sizeof(float));
}

static int take_memory(struct attention *a, bool with_sums)
{
    const struct plan *p = a->plan;
    a->n_keys = round_up((size_t)p->n_keys, KERNEL_LANES);
    a->value_dim = round_up(p->value_dim, KERNEL_LANES);
    divide_memory(a);
    size_t n_heads = a->most_kv * most_wanted(p);
    size_t n_blocks = a->n_block < a->n_keys ? 2 * (a->n_keys / a->n_block + 1) : 0;
    size_t dim = p->dim > a->value_dim ? p->dim : a->value_dim;
    a->heads = calloc(p->n_heads, sizeof *a->heads);
    a->q_read = floats(a->n_ahead, p->n_heads, p->dim);
    a->z_read = floats(a->n_ahead, p->n_heads, p->value_dim);
    a->z_there = calloc(a->n_ahead + 1, sizeof *a->z_there);
    a->queries = floats(n_heads, a->n_group, p->dim);
    a->rows = floats(n_heads, a->n_group, a->n_keys);
    a->sums = floats(n_heads, a->n_group, a->value_dim);
    a->row_sums = with_sums ? calloc(n_heads * a->n_group + 1, sizeof *a->row_sums) : NULL;
    a->keys.data = a->key_room = floats(a->most_kv, a->n_block, p->dim);
    a->values.data = a->value_room = floats(a->most_kv, a->n_block, a->value_dim);
    bool all = a->heads && a->q_read && a->z_read && a->z_there && a->queries && a->rows &&
               a->sums && (a->row_sums || !with_sums) && a->key_room && a->value_room &&
               !spill_init(&a->kept, a->most_kv * a->n_block * dim * sizeof(float), n_blocks);
    return all ? 0 : err_set(a->err, -ENOMEM, "no memory for attention over %zu keys", a->n_keys);
}

static void give_back_memory(struct attention *a)
{
    free(a->heads);
    free(a->q_read);
    free(a->z_read);
    free(a->z_there);
    free(a->queries);
    free(a->rows);
    free(a->sums);
    free(a->row_sums);
    free(a->key_room);
    free(a->value_room);
    spill_unmap(&a->kept, a->mapped[0]);
    spill_unmap(&a->kept, a->mapped[1]);
    spill_deinit(&a->kept);
}

/* ------------------------------------------------------------------------- one head's part */

static int64_t query(const struct attention *a, size_t i)
{
    return a->plan->queries[a->first + i];
}

static size_t first_key(const struct attention *a, size_t i)
{
    return (size_t)plan_first_key(a->layer, query(a, i));
}

static size_t end_key(const struct attention *a, size_t i)
{
    return (size_t)query(a, i) + 1;
}

static size_t max_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static float *row_of(const struct attention *a, size_t number, size_t i)
{
    return a->rows + (number * a->n_group + i) * a->n_keys;
}

/* Which KV head a head reads, of those in memory: consecutive heads share one. */
static size_t kv_head_of(const struct attention *a, size_t number)
{
    return a->heads[number] / (a->plan->n_heads / a->plan->n_kv_heads) - a->kv_first;
}

/* A task is of some queries of a head. */
static size_t tasks_of_head(const struct attention *a)
{
    return round_up(a->n, TASK_QUERIES) / TASK_QUERIES;
}

struct task {
    size_t number; /* of the head */
    size_t i, end; /* queries */
    size_t begin,
        after; /* keys: a stretch of those in memory, short enough for the processor's nearest cache */
};

static struct task task_of(const struct attention *a, size_t task)
{
    size_t i = task % tasks_of_head(a) * TASK_QUERIES;
    return (struct task){ .number = task / tasks_of_head(a),
                          .i = i,
                          .end = min_of(i + TASK_QUERIES, a->n) };
}

/* The next stretch of keys that a task's queries see, of the block @b. False: there is none. */
static bool next_keys(const struct attention *a, const struct operand_block *b, size_t dim,
                      struct task *t)
{
    size_t begin = (size_t)b->first, after = begin + b->n;
    size_t some = max_of(NEAR_FLOATS / dim / KERNEL_LANES, 1) * KERNEL_LANES;
    t->begin =
        t->after ? t->after : max_of(first_key(a, t->i), begin) / KERNEL_LANES * KERNEL_LANES;
    t->after = min_of(t->begin + some, min_of(end_key(a, t->end - 1), after));
    return t->begin < t->after;
}

/* Queries ascend, so the first of a group sees the first key. */
static void score_group(const struct attention *a, const struct task *t, size_t i)
{
    const struct plan *p = a->plan;
    const float *panels = a->keys.data + kv_head_of(a, t->number) * a->n_block * p->dim;
    size_t lo = max_of(first_key(a, i) / KERNEL_LANES * KERNEL_LANES, t->begin);
    size_t hi = min_of(end_key(a, min_of(i + KERNEL_GROUP, a->n) - 1), t->after);
    if (lo < hi)
        a->kernel->scores(a->queries + (t->number * a->n_group + i) * p->dim,
                          panels + (lo - (size_t)a->keys.first) * p->dim,
                          round_up(hi - lo, KERNEL_LANES) / KERNEL_LANES, p->dim,
                          (float)p->multiplier, row_of(a, t->number, i) + lo, a->n_keys);
}

/* Scores of the block of keys that is in memory. */
static void score(void *arg, size_t task)
{
    const struct attention *a = arg;
    struct task t = task_of(a, task);
    while (next_keys(a, &a->keys, a->plan->dim, &t))
        for (size_t i = t.i; i < t.end; i += KERNEL_GROUP)
            score_group(a, &t, i);
}

static struct kernel_sums *sums_of(const struct attention *a, size_t number, size_t i)
{
    return a->row_sums ? a->row_sums + number * a->n_group + i : NULL;
}

static void soften(void *arg, size_t task)
{
    const struct attention *a = arg;
    const double *sinks = a->layer->about.sinks;
    struct task t = task_of(a, task);
    float sink = sinks ? (float)sinks[a->heads[t.number]] : -INFINITY;
    for (size_t i = t.i; i < t.end; i++)
        a->kernel->softmax(row_of(a, t.number, i), first_key(a, i), end_key(a, i), a->n_keys,
                           (float)a->plan->cap, sink, sums_of(a, t.number, i));
}

/* Keys lo to before hi of one row or a group of them, in the task's stretch of values. */
static void weigh_keys(const struct attention *a, const struct task *t, size_t i, size_t n_rows,
                       size_t lo, size_t hi)
{
    const float *values = a->values.data + kv_head_of(a, t->number) * a->n_block * a->value_dim;
    lo = max_of(lo, t->begin);
    hi = min_of(hi, t->after);
    if (lo < hi)
        a->kernel->weigh(row_of(a, t->number, i) + lo, a->n_keys, n_rows,
                         values + (lo - (size_t)a->values.first) * a->value_dim, hi - lo,
                         a->value_dim, a->sums + (t->number * a->n_group + i) * a->value_dim);
}

/* Each row adds its keys in order, alone or in a group; keys that it does not see add nothing, not even NaN times 0. */
static void weigh_group(const struct attention *a, const struct task *t, size_t i)
{
    size_t lo = first_key(a, i + KERNEL_GROUP - 1), hi = end_key(a, i);
    if (lo >= hi)
        lo = hi = SIZE_MAX; /* windows that have no key in common */
    for (size_t k = i; k < i + KERNEL_GROUP; k++)
        weigh_keys(a, t, k, 1, first_key(a, k), min_of(lo, end_key(a, k)));
    if (lo == SIZE_MAX)
        return;
    weigh_keys(a, t, i, KERNEL_GROUP, lo, hi);
    for (size_t k = i; k < i + KERNEL_GROUP; k++)
        weigh_keys(a, t, k, 1, hi, end_key(a, k));
}

static void weigh(void *arg, size_t task)
{
    const struct attention *a = arg;
    struct task t = task_of(a, task);
    while (next_keys(a, &a->values, a->value_dim, &t)) {
        size_t i = t.i;
        for (; i + KERNEL_GROUP <= t.end; i += KERNEL_GROUP)
            weigh_group(a, &t, i);
        for (; i < t.end; i++)
            weigh_keys(a, &t, i, 1, first_key(a, i), end_key(a, i));
    }
}

/* One row: what was computed against what was captured. */
static void compare_row(const float *computed, const float *captured, size_t n, struct proof *proof)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double z = (double)captured[i], d = (double)computed[i] - z;
        difference += d * d;
        norm += z * z;
    }
    double error =
        difference == 0
            ? 0
            : sqrt(difference / norm); /* infinite where z is 0, NaN where a number is none */
    if (!isnan(proof->worst_row) && !(error <= proof->worst_row))
        proof->worst_row = error;
    proof->difference += difference;
    proof->norm += norm;
    proof->n_rows++;
}

static void compare(void *arg, size_t number)
{
    const struct attention *a = arg;
    const struct plan *p = a->plan;
    struct proof *proof = &a->layer->proofs[a->heads[number]];
    for (size_t i = 0; i < a->n; i++) {
        size_t read = a->first + i - a->ahead;
        if (a->z_there[read])
            compare_row(a->sums + (number * a->n_group + i) * a->value_dim,
                        a->z_read + (read * p->n_heads + a->heads[number]) * p->value_dim,
                        p->value_dim, proof);
    }
}

/* ------------------------------------------------------------------------- some queries */

/* How many of @n positions from @positions on follow one another. */
static size_t consecutive(const int64_t *positions, size_t n)
{
    size_t i = 1;
    while (i < n && positions[i] == positions[0] + (int64_t)i)
        i++;
    return i;
}

/* A query that another request computed says nothing about how its rows fit to this one's. */
static bool proves(const struct plan_layer *l, int64_t query)
{
    uint64_t one;
    return sources_at(&l->z, query, 1, &one) && !sources_borrow(&l->z, query) &&
           !sources_borrow(&l->q, query);
}

/* Rows of q and z of the next queries. */
static int read_ahead(struct attention *a, size_t first)
{
    const struct plan *p = a->plan;
    size_t n = min_of(a->n_ahead, p->n_queries - first), some;
    size_t q_width = (size_t)p->n_heads * p->dim, z_width = (size_t)p->n_heads * p->value_dim;
    a->ahead = first;
    for (size_t i = 0; i < n; i += some) {
        int64_t position = p->queries[first + i];
        some = consecutive(p->queries + first + i, n - i);
        int r = operand_read(a->err, a->layer, &a->layer->q, position, some, q_width, p->dim,
                             a->q_read + i * q_width);
        if (!r && a->layer->is_checked)
            r = operand_read(a->err, a->layer, &a->layer->z, position, some, z_width, p->value_dim,
                             a->z_read + i * z_width);
        if (r)
            return r;
    }
    for (size_t i = 0; i < n; i++)
        a->z_there[i] = a->layer->is_checked && proves(a->layer, p->queries[first + i]);
    return 0;
}

/* Rows of q by position to queries by head. */
static void spread_queries(struct attention *a)
{
    const struct plan *p = a->plan;
    for (size_t h = 0; h < a->n_heads; h++)
        for (size_t i = 0; i < a->n; i++)
            memcpy(a->queries + (h * a->n_group + i) * p->dim,
                   a->q_read + ((a->first + i - a->ahead) * p->n_heads + a->heads[h]) * p->dim,
                   p->dim * sizeof(float));
}

/* The block of keys, or of values, that begins at @at: it is in memory, in the file, or decoded and kept there. */
static int have_block(struct attention *a, bool values, size_t at)
{
    const struct plan *p = a->plan;
    const size_t n = min_of(a->n_block, (size_t)p->n_keys - at);
    const struct operand_block wanted = { a->layer, a->kv_first, a->n_kv, (int64_t)at, n, NULL };
    struct operand_block *b = values ? &a->values : &a->keys;
    size_t n_bytes = a->n_kv * a->n_block * (values ? a->value_dim : p->dim) * sizeof(float);
    size_t number = 2 * (at / a->n_block) + values;
    if (operand_has(b, &wanted))
        return 0;
    b->layer = NULL;
    spill_unmap(&a->kept, a->mapped[values]);
    a->mapped[values] = spill_map(&a->kept, number);
    b->data = a->mapped[values] ? (float *)(uintptr_t)a->mapped[values]
              : values          ? a->value_room
                                : a->key_room;
    if (a->mapped[values]) {
        operand_becomes(b, &wanted);
        return 0;
    }
    int r = values ? operand_values(a->err, p, &wanted, a->n_block, a->value_dim, b)
                   : operand_keys(a->err, p, &wanted, a->n_block, b);
    if (!r)
        spill_store(&a->kept, number, b->data, n_bytes);
    return r;
}

/* Does the tasks of each head, for each block of keys that the queries see. */
static int over_blocks(struct attention *a, bool values, void (*task)(void *, size_t))
{
    size_t end = end_key(a, a->n - 1);
    for (size_t at = first_key(a, 0) / a->n_block * a->n_block; at < end; at += a->n_block) {
        TRY(have_block(a, values, at));
        parallel(a->plan->n_threads, a->n_heads * tasks_of_head(a), task, a);
    }
    return 0;
}

static int hand_out(struct attention *a, attention_take *take, void *arg)
{
    int r = 0;
    for (size_t h = 0; take && h < a->n_heads && !r; h++) {
        const struct dmi_analyze_rows rows = { .size = sizeof rows,
                                               .layer = a->layer->layer,
                                               .head = a->heads[h],
                                               .n = (uint32_t)a->n,
                                               .first_query = a->first,
                                               .queries = a->plan->queries + a->first,
                                               .weights = row_of(a, h, 0),
                                               .stride = a->n_keys };
        r = take(arg, &rows, sums_of(a, h, 0));
    }
    return r;
}

static int compute_group(struct attention *a)
{
    spread_queries(a);
    TRY(over_blocks(a, false, score));
    parallel(a->plan->n_threads, a->n_heads * tasks_of_head(a), soften, a);
    if (!a->layer->is_checked)
        return 0;
    memset(a->sums, 0, a->n_heads * a->n_group * a->value_dim * sizeof *a->sums);
    int r = over_blocks(a, true, weigh);
    if (!r)
        parallel(a->plan->n_threads, a->n_heads, compare, a);
    return r;
}

static int run_heads(struct attention *a, attention_take *take, void *arg)
{
    const struct plan *p = a->plan;
    spill_clear(&a->kept);
    for (a->first = 0; a->first < p->n_queries; a->first += a->n) {
        int r = a->first % a->n_ahead ? 0 : read_ahead(a, a->first);
        a->n = min_of(a->n_group, p->n_queries - a->first);
        if (!r)
            r = compute_group(a);
        if (!r)
            r = hand_out(a, take, arg);
        if (r)
            return r;
    }
    return 0;
}

/* Takes the wanted heads from head @from on, as far as their KV heads fit. Return: the head after them; @from: none is wanted. */
static uint32_t take_heads(struct attention *a, uint32_t from)
{
    const struct plan *p = a->plan;
    uint32_t share = p->n_heads / p->n_kv_heads, h = from;
    a->n_heads = 0;
    for (; h < p->n_heads; h++) {
        if (!a->layer->wanted[h])
            continue;
        if (!a->n_heads)
            a->kv_first = h / share;
        if (h / share - a->kv_first >= a->most_kv)
            break;
        a->n_kv = h / share - a->kv_first + 1;
        a->heads[a->n_heads++] = h;
    }
    return a->n_heads ? h : from;
}

static int run_layer(struct attention *a, attention_take *take, void *arg)
{
    uint32_t from = 0, next;
    memset(a->layer->proofs, 0, a->plan->n_heads * sizeof *a->layer->proofs);
    for (; (next = take_heads(a, from)) != from; from = next) {
        TRY(run_heads(a, take, arg));
    }
    return 0;
}

int attention_run(struct err *err, struct plan *plan, attention_take *take, void *arg,
                  bool with_sums)
{
    struct attention a = {
        .err = err, .plan = plan, .kernel = kernel_best(), .kept = { .fd = -1 }
    };
    int r = take_memory(&a, with_sums);
    for (size_t i = 0; i < plan->n_layers && !r; i++) {
        a.layer = &plan->layers[i];
        r = run_layer(&a, take, arg);
    }
    give_back_memory(&a);
    return r;
}
