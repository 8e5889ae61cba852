/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/sums.h"

#include "core/grow.h"
#include "cupti/layouts.h"

#include <dmi/trace.h>

#include <stdio.h>
#include <stdlib.h>

#define QUIET_ROUNDS 2u  /* after which no more records of a step are expected */
#define DEAREST      3u  /* kernels that a sentence names, */
#define NAME_BYTES   48u /* by so much of their names */

struct sums_part {
    uint64_t step;
    uint64_t round; /* in which a record was added last */
    struct aggregate of;
};

/* The part of @step, a new one where there is none. NULL: no memory. */
static struct sums_part *part_of(struct trace_sums *s, uint64_t step)
{
    if (s->last < s->n && s->parts[s->last].step == step)
        return &s->parts[s->last];
    for (s->last = s->n; s->last-- > 0;)
        if (s->parts[s->last].step == step)
            return &s->parts[s->last];
    if (s->n == s->n_made) {
        if (PUSH(s->parts, s->n_made, s->room, 64, (struct sums_part){ 0 }))
            return NULL;
    }
    s->last = s->n++;
    s->parts[s->last].step = step;
    return &s->parts[s->last];
}

void sums_take(struct trace_sums *s, const struct records_event *event, uint64_t step)
{
    struct sums_part *part = part_of(s, step);
    if (!part || !aggregate_add(&part->of, event)) {
        s->no_memory++;
        return;
    }
    part->round = s->round;
}

static void put(struct trace_sums *s, struct sums_part *part, struct ran_chunks *to)
{
    for (size_t i = 0; i < part->of.n; i++)
        aggregate_merge(&s->all, &part->of.sums[i]); /* without memory a sentence says less */
    if (to && part->of.n_records)
        ran_chunks_sums(to, &part->of, part->step, SUMS_NAMES);
    aggregate_clear(&part->of);
}

static bool is_due(const struct trace_sums *s, const struct sums_part *part, bool second)
{
    return part->step < DMI_RAN_FIRST ? second : s->round - part->round > QUIET_ROUNDS;
}

void sums_round(struct trace_sums *s, bool second, bool all, struct ran_chunks *to)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct sums_part part = s->parts[i];
        if (all || is_due(s, &part, second)) {
            put(s, &s->parts[i], to);
            continue;
        }
        s->parts[i] = s->parts[n]; /* one that was put, or itself */
        s->parts[n++] = part;
    }
    s->n = n;
    s->last = 0;
    s->round++;
}

static bool is_kernel(const struct aggregate_sum *s)
{
    return s->n && s->kind == LAYOUTS_KERNEL;
}

void sums_dearest(struct trace_sums *s, char *to, size_t n_bytes)
{
    uint64_t all = 0;
    size_t n = 0, named = 0;
    *to = 0;
    aggregate_order(&s->all);
    for (size_t i = 0; i < s->all.n; i++)
        all += is_kernel(&s->all.sums[i]) ? s->all.sums[i].sum_ns : 0;
    for (size_t i = 0; i < s->all.n && named < DEAREST && n < n_bytes; i++) {
        const struct aggregate_sum *k = &s->all.sums[i];
        if (!is_kernel(k))
            continue;
        n += (size_t)snprintf(to + n, n_bytes - n, "%s%.1f%% %.*s", named++ ? ", " : "",
                              all ? 100 * (double)k->sum_ns / (double)all : 0, (int)NAME_BYTES,
                              k->name ? k->name : "without a name");
    }
}

void sums_deinit(struct trace_sums *s)
{
    for (size_t i = 0; i < s->n_made; i++)
        aggregate_deinit(&s->parts[i].of);
    free(s->parts);
    aggregate_deinit(&s->all);
    *s = (struct trace_sums){ 0 };
}
