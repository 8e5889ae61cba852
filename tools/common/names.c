/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/names.h"

#include "core/cleanup.h"
#include "core/grow.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int names_add(struct names *l, const char *name, size_t n_name)
{
    size_t *at = map_at(&l->index, name, n_name);
    if (!at)
        return -ENOMEM;
    if (*at == MAP_NONE) {
        if (grow((void **)&l->all, l->n, &l->room, sizeof *l->all, 32))
            return -ENOMEM;
        *at = l->n++;
        l->all[*at].name = name;
        l->all[*at].n_name = n_name;
        l->all[*at].n = 0;
    }
    l->all[*at].n++;
    return 0;
}

void names_deinit(struct names *l)
{
    map_deinit(&l->index);
    free(l->all);
}

/* {"name": tensors, ...} as a new reference. */
static json_t *names_value(const struct names *l)
{
    json_t *object = json_object();
    for (size_t i = 0; i < l->n; i++)
        json_object_setn_new(object, l->all[i].name, l->all[i].n_name, value_u64(l->all[i].n));
    return object;
}

void names_print(struct report *report, const char *title, const char *key, const struct names *l)
{
    _cleanup_(text_deinit) struct text line = { 0 };
    for (size_t i = 0; i < l->n; i++)
        text_printf(&line, "%s%.*s (%" PRIu64 ")", i ? ", " : title, (int)l->all[i].n_name,
                    l->all[i].name, l->all[i].n);
    if (l->n)
        report_line(report, "%s", line.failed ? title : line.data);
    report_member(report, key, report->json ? names_value(l) : NULL);
}

size_t names_site(const char *key, const char **site)
{
    const char *slash = strrchr(key, '/');
    *site = slash ? slash + 1 : key;
    size_t n = strlen(*site);
    size_t digits = n;
    while (digits && (*site)[digits - 1] >= '0' && (*site)[digits - 1] <= '9')
        digits--;
    return digits && digits < n && (*site)[digits - 1] == '.' ? digits - 1 : n;
}
