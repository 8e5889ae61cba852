/* SPDX-License-Identifier: Apache-2.0 */
#include "read/layers.h"

#include "core/grow.h"

#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>

#define MOST_TEXT 48

static int order(const void *pa, const void *pb)
{
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return a < b ? -1 : a > b;
}

void layers_sort(struct layers *l)
{
    size_t kept = 0;
    if (l->n)
        qsort(l->all, l->n, sizeof *l->all, order);
    for (size_t i = 0; i < l->n; i++)
        if (!kept || l->all[kept - 1] != l->all[i])
            l->all[kept++] = l->all[i];
    l->n = kept;
}

int layers_add(struct layers *l, int32_t layer)
{
    if (l->n == l->room) {
        layers_sort(l);
        if (GROW(l->all, 2 * l->n, l->room))
            return -ENOMEM;
    }
    l->all[l->n++] = layer;
    return 0;
}

void layers_deinit(struct layers *l)
{
    free(l->all);
    *l = (struct layers){ 0 };
}

json_t *layers_value(const struct layers *l)
{
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i] != DMI_NO_LAYER)
            json_array_append_new(list, json_integer(l->all[i]));
    return list;
}

void layers_add_text(struct text *to, const struct layers *l)
{
    for (size_t i = 0; i < l->n;) {
        size_t k = i;
        while (k + 1 < l->n && l->all[k + 1] == l->all[k] + 1 && l->all[k] != DMI_NO_LAYER)
            k++;
        if (to->n > MOST_TEXT) {
            text_printf(to, ",...");
            return;
        }
        if (l->all[i] == DMI_NO_LAYER)
            text_printf(to, "%s-", i ? "," : "");
        else if (i == k)
            text_printf(to, "%s%d", i ? "," : "", l->all[i]);
        else
            text_printf(to, "%s%d-%d", i ? "," : "", l->all[i], l->all[k]);
        i = k + 1;
    }
}
