/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export --fill-cached: whose rows stand for cached tokens. */
#include "core/any.h"
#include "tools/dump/export.h"

json_t *export_donor(const struct exporter *x, const struct stretch *s)
{
    const struct request *donor = &x->requests.all[s->donor - 1];
    return value_bytes(donor->id, donor->n_id);
}

json_t *export_donors(const struct exporter *x, const struct tensor *t)
{
    json_t *list = NULL;
    uint64_t at = 0;
    for (size_t p = 0; p < t->n_stretches; at += t->stretches[p++].n_rows) {
        const struct stretch *s = &t->stretches[p];
        if (s->donor == STRETCH_OWN)
            continue;
        list = list ? list : json_array();
        json_array_append_new(
            list, json_pack("[o, o, o]", value_u64(at), value_u64(s->n_rows), export_donor(x, s)));
    }
    return list;
}

json_t *export_donors_of(const struct exporter *x, const struct target *targets, size_t n)
{
    json_t *all = NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *donors = export_donors(x, targets[i].tensor);
        if (!donors)
            continue;
        all = all ? all : json_object();
        json_object_set_new(all, targets[i].tensor->name, donors);
    }
    return all;
}

/* Adds a name to a list that does not have it. Takes @name. */
static void add_name(json_t *list, json_t *name)
{
    size_t i;
    json_t *known;
    json_array_foreach(list, i, known) if (json_equal(known, name))
    {
        json_decref(name);
        return;
    }
    json_array_append_new(list, name);
}

uint64_t export_filled(const struct exporter *x, json_t *out)
{
    uint64_t n_rows = 0;
    for (size_t i = 0; i < x->n_targets; i++) {
        const struct tensor *t = x->targets[i].tensor;
        for (size_t p = 0; p < t->n_stretches; p++) {
            if (t->stretches[p].donor == STRETCH_OWN)
                continue;
            n_rows += t->stretches[p].n_rows;
            json_t *id = value_bytes(t->request, t->n_request);
            json_t *list = json_object_get(out, json_string_value(id));
            if (!list) {
                json_object_set_new(out, json_string_value(id), json_array());
                list = json_object_get(out, json_string_value(id));
            }
            add_name(list, export_donor(x, &t->stretches[p]));
            json_decref(id);
        }
    }
    return n_rows;
}

static bool has_donor(const struct tensor *t)
{
    return ANY(p, t->n_stretches, t->stretches[p].donor != STRETCH_OWN);
}

size_t export_n_filled(const struct exporter *x)
{
    size_t n = 0;
    for (size_t i = 0; x->n_group && i < x->n_targets; i += x->n_group) {
        bool any = false;
        for (size_t k = i; k < i + x->n_group; k++)
            any |= has_donor(x->targets[k].tensor);
        n += any;
    }
    return n;
}
