/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/levels.h"

#include <stddef.h>

#define KNOWN 8 /* turns by which neighbours are known */

static uint32_t key_of(struct load_kind of)
{
    return 1 + (((uint32_t)of.phase << 22) | ((uint32_t)of.bucket << 14) |
                ((uint32_t)(of.context & 127) << 7) | (of.fresh & 127));
}

static uint32_t set_of(uint32_t key)
{
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 55);
}

const struct level *levels_find(const struct levels *ls, struct load_kind of)
{
    uint32_t key = key_of(of);
    const struct level *set = ls->all[set_of(key)];
    for (int i = 0; i < LEVELS_WAYS; i++)
        if (set[i].key == key)
            return &set[i];
    return NULL;
}

struct mean {
    float sum;
    unsigned n;
};

/* The level of a kind, by the turns that it is known by. */
static void add(struct mean *near, const struct levels *ls, struct load_kind of, int series)
{
    const struct level *l = levels_find(ls, of);
    if (l) {
        near->sum += l->level[series] * l->n[series];
        near->n += l->n[series];
    }
}

/* Those whose context, new tokens or rows are one band off; else those of other phases with the same numbers. */
struct levels_near levels_near(const struct levels *ls, struct load_kind of, int series)
{
    struct mean near = { 0 };
    for (int i = 0; i < 6; i++) {
        struct load_kind other = of;
        uint8_t *number = i < 2 ? &other.context : i < 4 ? &other.fresh : &other.bucket;
        *number = (uint8_t)(*number + (i % 2 ? 1 : -1));
        add(&near, ls, other, series);
    }
    for (uint8_t i = 1; i < LOAD_PHASES && !near.n; i++) {
        struct load_kind other = of;
        other.phase ^= i;
        add(&near, ls, other, series);
    }
    return (struct levels_near){ near.n ? near.sum / (float)near.n : 1, near.n >= KNOWN };
}

struct level *levels_take(struct levels *ls, const struct load *load)
{
    struct load_kind of = load_kind(load);
    struct level *l = (struct level *)levels_find(ls, of);
    if (!l) {
        struct level *set = ls->all[set_of(key_of(of))];
        l = set;
        for (int i = 1; i < LEVELS_WAYS; i++) /* an empty place comes first */
            if (!set[i].key || (l->key && ls->now - set[i].seen > ls->now - l->seen))
                l = &set[i];
        ls->forgotten += l->key != 0;
        *l = (struct level){ .key = key_of(of) };
        for (int s = 0; s < LEVELS_SERIES; s++) {
            struct levels_near near = levels_near(ls, of, s);
            l->level[s] = near.level;
            l->is_alone[s] = !near.is_known;
        }
    }
    l->seen = ls->now++;
    l->last = fit_load(load);
    return l;
}

void levels_rebase(struct levels *ls, int series, const struct fit *before, const struct fit *now)
{
    for (size_t i = 0; i < LEVELS_SETS; i++) {
        for (size_t j = 0; j < LEVELS_WAYS; j++) {
            struct level *l = &ls->all[i][j];
            if (l->key)
                l->level[series] *= (float)(fit_at(before, &l->last) / fit_at(now, &l->last));
        }
    }
}
