/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/write.h"

#include "core/utf8.h"
#include "core/words.h"
#include "tools/sites/absent.h"

#include <dmi/dtype.h>

#include <stdlib.h>
#include <string.h>

#define SITES_ON_KERNEL 16u /* as many as a HookSpec may have */

/* ------------------------------------------------------------------------- words */

/* A name as a regular expression that matches nothing else. */
static void put_escaped(FILE *out, const char *name)
{
    for (size_t len; *name; name += len) {
        uint32_t c;
        len = utf8_next(name, strlen(name), &c);
        if (!len || !utf8_is_printable(c)) {
            fputc('.', out); /* no text of a HookSpec */
            len = len ? len : 1;
            continue;
        }
        if (strchr("\\.[](){}*+?^$|", *name))
            fputc('\\', out);
        if (*name == '\'')
            fputc('\'', out);
        fwrite(name, 1, len, out);
    }
}

static void put_pattern(FILE *out, const char *const *names, uint32_t n)
{
    fputs(n > 1 ? "'^(" : "'^", out);
    for (uint32_t i = 0; i < n; i++) {
        fputs(i ? "|" : "", out);
        put_escaped(out, names[i]);
    }
    fputs(n > 1 ? ")$'" : "$'", out);
}

static const char *kind_name(const struct scene *scene, uint32_t kind)
{
    return scene->kinds->at[kind].name;
}

static const char *site_name(const struct scene *scene, uint32_t site)
{
    return scene->probe->ref->sites[site].name;
}

/* ------------------------------------------------------------------------- one site */

/* Do the elements of a row, and of a chunk, lie as `dims` assumes without strides? */
static bool is_packed(const struct entry *e, uint32_t width)
{
    char packed[32];
    size_t size = dmi_dtype_bytes(e->dtype);
    snprintf(packed, sizeof packed, "%zu", e->chunk * size);
    bool chunks = e->n_chunks == 1 || !strcmp(e->chunk_stride.text, packed);
    snprintf(packed, sizeof packed, "%zu", width * size);
    return chunks && (!*e->row_stride.text || !strcmp(e->row_stride.text, packed));
}

/* Which slots of a paged cache the rows are in. */
static void put_slots(FILE *out, const struct entry *e)
{
    if (e->list_dtype)
        fprintf(out, ", slots: {pointer: '%s', dtype: %s}", e->list,
                dmi_dtype_info(e->list_dtype)->name);
}

static void put_dims(FILE *out, const struct entry *e, uint32_t width)
{
    size_t size = dmi_dtype_bytes(e->dtype);
    if (is_packed(e, width)) {
        fprintf(out, "    dims: [{row: true, count: '%s'", e->count.text);
        put_slots(out, e);
        fputs(width > 1 ? "}" : "}]\n", out);
        if (width > 1)
            fprintf(out, ", {count: %u}]\n", width);
        return;
    }
    fprintf(out, "    dims:\n      - {row: true, count: '%s', stride: '", e->count.text);
    if (*e->row_stride.text)
        fprintf(out, "%s'", e->row_stride.text);
    else
        fprintf(out, "%zu'", e->chunk * size); /* one row: any will do */
    put_slots(out, e);
    fputs("}\n", out);
    if (e->n_chunks > 1)
        fprintf(out, "      - {count: %u, stride: '%s'}\n", e->n_chunks, e->chunk_stride.text);
    if (e->chunk > 1)
        fprintf(out, "      - {count: %u}\n", e->chunk);
}

static void put_occurrences(FILE *out, const struct entry *e)
{
    bool all = e->expect && !e->from && e->to + 1 == e->expect && e->every == 1;
    fputs("    occurrences: {", out);
    if (e->expect)
        fprintf(out, "expect: %u%s", e->expect, all ? "" : ", ");
    if (!all)
        fprintf(out, "from: %u, to: %u", e->from, e->to);
    if (!all && e->every > 1)
        fprintf(out, ", every: %u", e->every);
    fputs("}\n", out);
    if (*e->layer)
        fprintf(out, "    layer: %s\n", e->layer);
}

/* What makes the site less than certain, as one sentence or none. */
static void put_doubts(FILE *out, const struct scene *scene, const struct entry *e)
{
    const struct forward_kind *k = &scene->kinds->at[e->kind];
    if (e->n_seen < e->n_wanted)
        fprintf(out, "; seen in %u of %u forwards and layers", e->n_seen, e->n_wanted);
    if (e->count.padded)
        fputs("; the count is that of padded rows", out);
    if (e->count.constant && k->most_rows > 1 && !e->last_rows)
        fputs("; only one number of tokens was recorded, so the count is fixed", out);
    if (e->several)
        fputs("; several kernels write it, this one the last part", out);
    if (*e->also)
        fprintf(out, "; %s is in %s", e->unsure ? "the same or nearly so" : "the same", e->also);
}

void write_site(FILE *out, const struct scene *scene, const struct entry *e)
{
    fprintf(out, "  - name: %s\n", site_name(scene, e->site));
    fprintf(out, "    forward: %s\n    kernel: ", kind_name(scene, e->kind));
    put_pattern(out, e->names, e->n_names);
    fprintf(out, "\n    pointer: %s\n", e->pointer);
    if (strcmp(e->offset.text, "0") != 0)
        fprintf(out, "    offset: '%s'\n", e->offset.text);
    fprintf(out, "    dtype: %s\n", dmi_dtype_info(e->dtype)->name);
    put_dims(out, e, scene->probe->ref->sites[e->site].width);
    put_occurrences(out, e);
    if (e->before)
        fputs("    when: before\n", out);
    if (e->last_rows)
        fputs("    row: request\n", out);
    if (e->scale != 1)
        fprintf(out, "    scale: %.7g\n", (double)e->scale);
    fprintf(out, "    note: 'relative error %.1e", (double)e->error);
    put_doubts(out, scene, e);
    fputs("'\n", out);
}

/* ------------------------------------------------------------------------- the file */

static bool can_be_said(const struct scene *scene, const struct entry *e)
{
    return !e->why && scene->kinds->at[e->kind].begin;
}

/* More sites on one kernel than a HookSpec may have are left out, and reported. */
static void limit_sites(struct entries *all)
{
    for (size_t i = 0; i < all->n; i++) {
        uint32_t n = 1;
        for (size_t k = 0; k < i; k++)
            n += !all->at[k].why && !strcmp(all->at[k].names[0], all->at[i].names[0]);
        if (n > SITES_ON_KERNEL)
            all->at[i].why = "a HookSpec takes no more than 16 sites on one kernel";
    }
}

void write_head(FILE *out, const char *model)
{
    fputs("# Written by dmi-sites match. Grammar: docs/hookspec.md\nhookspec: 1\n", out);
    if (model) {
        fputs("model: ", out);
        absent_put_quoted(out, model);
        fputc('\n', out);
    }
    fputs("convention: {layer_base: 0}\n", out);
}

bool write_spec(FILE *out, const struct scene *scene, const struct entries *entries,
                const struct spec *old)
{
    bool any = false;
    limit_sites((struct entries *)entries);
    for (size_t i = 0; i < entries->n; i++)
        any = any || can_be_said(scene, &entries->at[i]);
    if (!any)
        return false;
    fputs("forward:\n", out);
    for (uint32_t k = 0; k < scene->kinds->n; k++)
        if (scene->kinds->at[k].begin) {
            fprintf(out, "  - {kind: %s, begin: {kernel: ", kind_name(scene, k));
            put_pattern(out, &scene->kinds->at[k].begin, 1);
            fputs("}}\n", out);
        }
    fputs("sites:\n", out);
    for (size_t i = 0; i < entries->n; i++)
        if (can_be_said(scene, &entries->at[i]))
            write_site(out, scene, &entries->at[i]);
    absent_put(out, scene, entries, old);
    return true;
}

/* ------------------------------------------------------------------------- the report */

static void report_entry(FILE *out, const struct scene *scene, const struct entry *e)
{
    fprintf(out, "%-8s %-14s %u of %u, error %.1e, ", kind_name(scene, e->kind),
            site_name(scene, e->site), e->n_seen, e->n_wanted, (double)e->error);
    put_pattern(out, e->names, e->n_names);
    if (e->why)
        fprintf(out, ": not in the spec: %s", e->why);
    else
        fprintf(out, " %s%s%s", e->pointer, e->list_dtype ? " in the slots of " : "", e->list);
    put_doubts(out, scene, e);
    fputc('\n', out);
}

void write_report(FILE *out, const struct scene *scene, const struct entries *entries)
{
    for (uint32_t k = 0; k < scene->kinds->n; k++) {
        const struct forward_kind *kind = &scene->kinds->at[k];
        fprintf(out, "%s: %u %s of %u to %u rows, ", kind->name, kind->n_forwards,
                word_for(kind->n_forwards, "forward", "forwards"), kind->fewest_rows,
                kind->most_rows);
        if (kind->begin)
            fprintf(out, "begun by %s\n", kind->begin);
        else
            fputs("which no kernel begins: none of its sites is in the spec\n", out);
    }
    for (size_t i = 0; i < entries->n; i++)
        report_entry(out, scene, &entries->at[i]);
    for (uint32_t k = 0; k < scene->kinds->n; k++)
        for (uint32_t s = 0; s < entries->n_sites; s++)
            if (absent_is(entries, k, s))
                fprintf(out, "%-8s %-14s not found\n", kind_name(scene, k), site_name(scene, s));
}
