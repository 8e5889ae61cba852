/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/weight_map.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

size_t weight_map_side(uint64_t n, size_t most)
{
    return n < most ? (size_t)n : most;
}

int weight_map_init(struct weight_map *m, const struct dmi_analyze_shape *shape, size_t most)
{
    m->n_queries = shape->n_queries;
    m->n_keys = shape->n_keys;
    m->n_rows = weight_map_side(m->n_queries, most);
    m->n_columns = weight_map_side((uint64_t)m->n_keys, most);
    m->cells = calloc(m->n_rows * m->n_columns + 1, sizeof *m->cells);
    return m->cells ? 0 : -ENOMEM;
}

void weight_map_deinit(struct weight_map *m)
{
    free(m->cells);
    *m = (struct weight_map){ 0 };
}

static float largest(const float *weights, int64_t first, int64_t end, float most)
{
    for (int64_t key = first; key < end; key++)
        most = weights[key] > most || isnan(weights[key]) ? weights[key] : most;
    return most;
}

void weight_map_add(struct weight_map *m, const struct dmi_analyze_rows *rows, bool skip_first)
{
    int64_t n_columns = (int64_t)m->n_columns;
    for (uint32_t i = 0; i < rows->n; i++) {
        float *cells = m->cells + (rows->first_query + i) * m->n_rows / m->n_queries * m->n_columns;
        int64_t end = rows->queries[i] + 1;
        for (int64_t column = 0, key = 0, next; key < end; column++, key = next) {
            next =
                ((column + 1) * m->n_keys + n_columns - 1) / n_columns; /* the next one's first */
            cells[column] = largest(rows->weights + i * rows->stride, key ? key : skip_first,
                                    next < end ? next : end, cells[column]);
        }
    }
}

int64_t weight_map_query(const struct weight_map *m, const struct dmi_analyze_shape *shape,
                         size_t row)
{
    return shape->queries[(row * m->n_queries + m->n_rows - 1) / m->n_rows];
}
