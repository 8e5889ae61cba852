/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/absent.h"

#include <string.h>

static const char *site_name(const struct scene *scene, uint32_t site)
{
    return scene->probe->ref->sites[site].name;
}

void absent_put_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

bool absent_is(const struct entries *entries, uint32_t kind, uint32_t site)
{
    bool there = entries_found(entries, kind, site);
    for (size_t i = 0; i < entries->n; i++)
        there = there || (entries->at[i].kind == kind && entries->at[i].site == site);
    return !there;
}

/* Return: the kind of that name, or scene->kinds->n */
static uint32_t kind_of(const struct scene *scene, const char *name)
{
    uint32_t k = 0;
    while (k < scene->kinds->n &&
           (!scene->kinds->at[k].begin || strcmp(scene->kinds->at[k].name, name)))
        k++;
    return k;
}

/* Does what somebody wrote still hold: was nothing of it found where it says so? */
static bool holds(const struct scene *scene, const struct entries *entries, const struct spec *old,
                  const struct spec_absent *absent)
{
    const char *kind = absent->kind < 0 ? NULL : old->kinds[absent->kind].name;
    if (kind && kind_of(scene, kind) == scene->kinds->n)
        return false;
    for (size_t i = 0; i < entries->n; i++)
        if (!strcmp(site_name(scene, entries->at[i].site), absent->name) &&
            (!kind || kind_of(scene, kind) == entries->at[i].kind))
            return false;
    return true;
}

/* Did somebody write why? @kind: NULL for any */
static bool is_said(const struct spec *old, const char *kind, const char *name)
{
    for (size_t i = 0; old && i < old->n_absent; i++) {
        const struct spec_absent *a = &old->absent[i];
        if (!strcmp(a->name, name) &&
            (!kind || a->kind < 0 || !strcmp(old->kinds[a->kind].name, kind)))
            return true;
    }
    return false;
}

/* @kind: NULL for all */
static void put_one(FILE *out, bool *any, const char *name, const char *kind, const char *why)
{
    fprintf(out, "%s  - {name: %s, ", *any ? "" : "\nabsent:\n", name);
    if (kind)
        fprintf(out, "forward: %s, ", kind);
    fputs("why: ", out);
    absent_put_quoted(out, why);
    fputs("}\n", out);
    *any = true;
}

static void put_found(FILE *out, bool *any, const struct scene *scene,
                      const struct entries *entries, const struct spec *old, uint32_t site)
{
    static const char why[] = "nothing that a launch of the recording wrote is this tensor";
    const char *name = site_name(scene, site);
    bool nowhere = !is_said(old, NULL, name);
    for (uint32_t k = 0; k < scene->kinds->n; k++)
        nowhere = nowhere && (!scene->kinds->at[k].begin || absent_is(entries, k, site));
    if (nowhere)
        put_one(out, any, name, NULL, why);
    for (uint32_t k = 0; !nowhere && k < scene->kinds->n; k++)
        if (scene->kinds->at[k].begin && absent_is(entries, k, site) &&
            !is_said(old, scene->kinds->at[k].name, name))
            put_one(out, any, name, scene->kinds->at[k].name, why);
}

void absent_put(FILE *out, const struct scene *scene, const struct entries *entries,
                const struct spec *old)
{
    bool any = false;
    for (size_t i = 0; old && i < old->n_absent; i++)
        if (holds(scene, entries, old, &old->absent[i]))
            put_one(out, &any, old->absent[i].name,
                    old->absent[i].kind < 0 ? NULL : old->kinds[old->absent[i].kind].name,
                    old->absent[i].why);
    for (uint32_t s = 0; s < entries->n_sites; s++)
        put_found(out, &any, scene, entries, old, s);
}
