/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/ladder.h"

#include "core/atomic.h"

#define LEAST_BYTES (64u << 10) /* of a batch whose times say something */
#define CALM        8u          /* batches after which a rung of fewer bytes is tried */
#define FORGET      256u /* batches on one rung after which the others are worth a try again */
#define MIB         (1u << 20)

enum codec_rung ladder_rung(const struct ladder *l)
{
    return (enum codec_rung)atomic_load_relaxed(&l->rung);
}

static void smooth(uint64_t *mean, uint64_t ns, uint64_t n_bytes)
{
    uint64_t each = ns * MIB / n_bytes + 1;
    *mean = *mean ? (3 * *mean + each) / 4 : each;
}

/* One rung down, to fewer bytes. */
static uint32_t smaller(uint32_t rung)
{
    return rung ? rung - 1 : 0;
}

static uint32_t quicker(uint32_t rung)
{
    return rung + 1 < CODEC_RUNGS ? rung + 1 : rung;
}

/* What a MiB takes on a rung, of the slower of encoding and writing. */
static uint64_t cost(const struct ladder *l, uint32_t rung, uint32_t n_encoders)
{
    uint64_t encode = l->encode_ns[rung] / n_encoders;
    return encode > l->append_ns[rung] ? encode : l->append_ns[rung];
}

/* Would a rung take what comes, with a fifth to spare? One that is not known is tried. */
static bool keeps_up(const struct ladder *l, uint32_t rung, const struct ladder_batch *b,
                     uint32_t n_encoders)
{
    uint64_t since = b->since_ns * MIB / b->n_bytes;
    return cost(l, rung, n_encoders) < since - since / 5;
}

/* What is slow takes less there, unless something else is known to take as long. */
static uint32_t relief(const struct ladder *l, uint32_t rung, uint32_t n_encoders)
{
    bool writing = l->append_ns[rung] > l->encode_ns[rung] / n_encoders;
    uint32_t other = writing ? smaller(rung) : quicker(rung);
    uint64_t here = cost(l, rung, n_encoders);
    return cost(l, other, n_encoders) < here - here / 20 ? other : rung;
}

static void measure(struct ladder *l, const struct ladder_batch *b)
{
    smooth(&l->encode_ns[b->rung], b->encode_ns, b->n_bytes);
    smooth(&l->append_ns[b->rung], b->append_ns, b->n_bytes);
    l->n_calm = b->waited ? 0 : l->n_calm + 1;
    if (++l->n_here % FORGET)
        return;
    for (uint32_t r = 0; r < CODEC_RUNGS; r++)
        if (r != b->rung)
            l->encode_ns[r] = l->append_ns[r] = 0;
}

void ladder_note(struct ladder *l, const struct ladder_batch *b, uint32_t n_encoders)
{
    uint32_t rung = atomic_load_relaxed(&l->rung), next = rung;
    if (b->n_bytes < LEAST_BYTES)
        return;
    measure(l, b);
    if (b->waited && b->rung == rung) /* not those that were encoded before the last change */
        next = relief(l, rung, n_encoders);
    else if (l->n_calm >= CALM && rung && keeps_up(l, smaller(rung), b, n_encoders))
        next = smaller(rung);
    if (next == rung)
        return;
    l->n_calm = l->n_here = 0;
    atomic_store_relaxed(&l->rung, next);
}
