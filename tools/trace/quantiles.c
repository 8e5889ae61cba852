/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/quantiles.h"

#include "core/any.h"
#include "core/grow.h"
#include "core/parts.h"
#include "core/sorted.h"

#include <stdlib.h>

#define PARTS          256u /* of a power of two */
#define HALF           (64u * PARTS)
#define SIZE_OF(value) ((value) < 0 ? -(uint64_t)(value) : (uint64_t)(value))

static void count(struct quantiles *q, int64_t value)
{
    q->parts[(value < 0 ? 0 : HALF) + parts_of(SIZE_OF(value), PARTS)]++;
}

static bool fold(struct quantiles *q)
{
    q->parts = calloc(2 * HALF, sizeof *q->parts);
    if (!q->parts)
        return false;
    for (uint64_t i = 0; i < q->n; i++)
        count(q, q->values[i]);
    free(q->values);
    q->values = NULL;
    return true;
}

bool quantiles_add(struct quantiles *q, int64_t value)
{
    if (!q->parts && q->n == QUANTILES_EXACT && !fold(q))
        return false;
    if (q->parts)
        count(q, value);
    else if (GROW(q->values, q->n, q->room))
        return false;
    else
        q->values[q->n] = value;
    q->n++;
    return true;
}

/* Those below 0 come first, the largest of them before the others. */
int64_t quantiles_at(struct quantiles *q, double share)
{
    uint64_t rank = (uint64_t)(share * (double)(q->n ? q->n - 1 : 0)), before = 0;
    if (!q->parts) {
        SORT(q->values, q->n, order_i64);
        return q->n ? q->values[rank] : 0;
    }
    for (uint32_t i = HALF; i-- > 0;)
        if ((before += q->parts[i]) > rank)
            return -(int64_t)parts_middle(i, PARTS);
    return FIRST(i, HALF, (before += q->parts[HALF + i]) > rank, (int64_t)parts_middle(i, PARTS),
                 0);
}

void quantiles_deinit(struct quantiles *q)
{
    free(q->values);
    free(q->parts);
    *q = (struct quantiles){ 0 };
}
