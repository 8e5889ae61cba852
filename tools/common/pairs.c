/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/pairs.h"

#include <errno.h>
#include <stdlib.h>

int pairs_init(struct pairs *p, size_t most)
{
    *p = (struct pairs){ .all = calloc(most + 1, sizeof *p->all), .most = most };
    return p->all ? 0 : -ENOMEM;
}

void pairs_deinit(struct pairs *p)
{
    free(p->all);
    *p = (struct pairs){ 0 };
}

/* The first by layer, head, query and key is the strongest of equal weights. */
static bool is_weaker(const struct pair *a, const struct pair *b)
{
    if (a->weight != b->weight)
        return a->weight < b->weight;
    if (a->layer != b->layer)
        return a->layer > b->layer;
    if (a->head != b->head)
        return a->head > b->head;
    return a->query != b->query ? a->query > b->query : a->key > b->key;
}

static void exchange(struct pair *a, struct pair *b)
{
    struct pair was = *a;
    *a = *b;
    *b = was;
}

static void sink(struct pairs *p, size_t i)
{
    for (;;) {
        size_t weakest = i;
        for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < p->n; k++)
            if (is_weaker(&p->all[k], &p->all[weakest]))
                weakest = k;
        if (weakest == i)
            return;
        exchange(&p->all[i], &p->all[weakest]);
        i = weakest;
    }
}

static void put(struct pairs *p, const struct pair *pair)
{
    if (p->n == p->most) {
        p->all[0] = *pair;
        sink(p, 0);
        return;
    }
    size_t i = p->n++;
    p->all[i] = *pair;
    for (; i && is_weaker(&p->all[i], &p->all[(i - 1) / 2]); i = (i - 1) / 2)
        exchange(&p->all[i], &p->all[(i - 1) / 2]);
}

void pairs_add(struct pairs *p, const struct dmi_analyze_rows *rows, bool skip_first)
{
    for (uint32_t i = 0; i < rows->n; i++) {
        const float *row = rows->weights + i * rows->stride;
        if (!rows->queries[i])
            continue; /* it sees itself alone */
        for (int64_t key = skip_first; key <= rows->queries[i]; key++) {
            if (p->n == p->most && row[key] < p->all[0].weight)
                continue;
            const struct pair pair = { row[key], rows->layer, rows->head, rows->queries[i], key };
            if (p->n < p->most || is_weaker(&p->all[0], &pair))
                put(p, &pair);
        }
    }
}

static int by_strength(const void *a, const void *b)
{
    return is_weaker(a, b) ? 1 : -1;
}

void pairs_sort(struct pairs *p)
{
    qsort(p->all, p->n, sizeof *p->all, by_strength);
}
