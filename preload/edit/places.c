/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/places.h"

#include "core/atomic.h"
#include "preload/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define N_LAYERS ((int32_t)1023) /* that DMI_EDIT_AT() can say; -1 is none */

/* By number of the place. */
static struct place {
    uint64_t rows[N_LAYERS + 1]; /* by layer + 1: packed(); 0: not seen */
    uint8_t
        passes[N_LAYERS +
               1]; /* by layer + 1: the highest DMI_EDIT_PASS(): how often it ran in a forward */
    uint64_t step; /* the one after that in which it was seen first; 0: the engine says none */
    uint64_t n_graphs, n_closed; /* execs that have it; of these: where nothing can be written */
} places[SPEC_MAX_PLACES];

static struct place *place_of(uint32_t site)
{
    return &places[session_site(site)->write.place];
}

#define HAS_HEADS 0x80000000u /* a row has less than 2^31 elements */

static uint64_t packed(struct dmi_edit_shape row)
{
    return (uint64_t)row.n << 32 | row.head | (row.heads ? HAS_HEADS : 0);
}

static struct dmi_edit_shape unpacked(uint64_t rows)
{
    uint32_t n = (uint32_t)(rows >> 32), head = (uint32_t)rows & ~HAS_HEADS;
    return (struct dmi_edit_shape){ n, head, rows & HAS_HEADS ? n / head : 0 };
}

void places_saw(uint32_t site, int32_t layer, struct dmi_edit_shape row, uint32_t pass)
{
    struct place *p = place_of(site);
    uint64_t rows = packed(row);
    if (layer < N_LAYERS && pass > atomic_load_relaxed(&p->passes[layer + 1]))
        atomic_store_relaxed(&p->passes[layer + 1], (uint8_t)pass);
    if (!row.n || layer >= N_LAYERS || atomic_load_relaxed(&p->rows[layer + 1]) == rows)
        return;
    atomic_store_relaxed(&p->rows[layer + 1], rows);
    if (!atomic_load_relaxed(&p->step))
        atomic_store_release(&p->step, atomic_load_relaxed(&session.next_step));
}

void places_in_graph(uint32_t site, bool writable)
{
    struct place *p = place_of(site);
    atomic_add_relaxed(&p->n_graphs, 1);
    if (!writable)
        atomic_add_relaxed(&p->n_closed, 1);
}

/* ------------------------------------------------------------------------- does an edit suit */

static int check_graphs(struct err *err, const struct edit *edit, const struct place *p)
{
    uint64_t closed = atomic_load_relaxed(&p->n_closed), all = atomic_load_relaxed(&p->n_graphs);
    if (!closed || edit->partial)
        return 0;
    return err_set(err, -EINVAL,
                   "the edit \"%s\": nothing can be written at %s in %" PRIu64 " of %" PRIu64
                   " graphs (the log says why): with \"partial: allow\" it writes in the others",
                   edit->name, edit->site, closed, all);
}

static int refuse_rows(struct err *err, const struct edit *edit, const struct dmi_edit_part *part,
                       struct dmi_edit_shape row, int32_t layer)
{
    char in_layer[32] = "";
    if (layer >= 0)
        snprintf(in_layer, sizeof in_layer, " in layer %d", layer);
    return err_set(err, -EINVAL,
                   "the edit \"%s\": %s has rows of %u elements%s, heads of %u; vectors of %u "
                   "elements, or its columns or heads, do not suit them",
                   edit->name, edit->site, row.n, in_layer, row.head, part->width);
}

/* What the ranks do of it. *@cut: of its rows. */
static int check_rank(struct err *err, const struct edit *edit, const struct edit_ranks *ranks,
                      struct dmi_edit_cut *cut)
{
    char why[400];
    *cut = EDIT_WHOLE;
    if (!ranks || edit_by_rank(edit, session.spec, ranks, cut, why, sizeof why) != EDIT_RANK_CANNOT)
        return 0;
    return err_set(err, -EINVAL, "the edit \"%s\": %s", edit->name, why);
}

/* Its parts in the layers that were seen have vectors, columns and heads for such rows, of which @cut is here. */
static int check_rows(struct err *err, const struct edit_version *v, uint32_t number,
                      uint32_t place, struct dmi_edit_cut cut)
{
    const struct edit *edit = v->uses[number].edit;
    const struct edit_table *table = version_table(v);
    for (int32_t layer = -1; layer < N_LAYERS; layer++) {
        uint64_t rows = atomic_load_relaxed(&places[place].rows[layer + 1]);
        struct dmi_edit_shape row = unpacked(rows);
        uint32_t n_parts = 0;
        const struct dmi_edit_part *p =
            rows ? edit_table_parts(table, place, layer, &n_parts) : NULL;
        for (uint32_t i = 0; i < n_parts; i++) {
            struct dmi_edit_fit fit = edit_part_fit(table, &p[i], row, cut);
            if (p[i].edit == number && fit.fits == DMI_EDIT_DIVIDED)
                return err_set(err, -EINVAL, "the edit \"%s\" sums over a row that ranks divide",
                               edit->name);
            if (p[i].edit == number && fit.fits == DMI_EDIT_FITS_NOT)
                return refuse_rows(err, edit, &p[i],
                                   (struct dmi_edit_shape){ fit.whole, row.head, row.heads },
                                   layer);
        }
    }
    return 0;
}

/* Is the edit for this layer, as it or one of its vectors names it? */
static bool is_for(const struct edit_use *use, int32_t layer)
{
    const struct edit *edit = use->edit;
    if (edit->layers.n)
        return spec_takes_layer(&edit->layers, layer, 0);
    for (uint32_t i = 0; i < use->of->n_tensors; i++)
        for (uint32_t k = 0; k < edit->n_ops && use->of->tensors[i].layer == layer; k++)
            if (edit->ops[k].vector == use->of->tensors[i].vector ||
                edit->ops[k].encoder == use->of->tensors[i].vector)
                return true;
    return false;
}

static bool is_of(uint32_t site, const struct edit *edit)
{
    return session_site(site)->action == SPEC_EDIT &&
           !strcmp(session_site(site)->about.name, edit->site);
}

/* What launches showed of an edit's site, by layer + 1: was it there, and how often did it run in a forward at most? */
struct shown {
    bool any, seen[N_LAYERS + 1];
    uint8_t passes[N_LAYERS + 1];
};

/* A spec may have an entry a layer: they are joined. */
static void shown_of(const struct edit *edit, struct shown *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        if (!is_of(i, edit))
            continue;
        const struct place *p = place_of(i);
        for (int32_t at = 0; at <= N_LAYERS; at++) {
            uint8_t n = atomic_load_relaxed(&p->passes[at]);
            out->seen[at] |= atomic_load_relaxed(&p->rows[at]) != 0;
            out->any |= out->seen[at];
            out->passes[at] = n > out->passes[at] ? n : out->passes[at];
        }
    }
}

/* The layers that it is for are there, as far as launches have shown its site. */
static int check_seen_layers(struct err *err, const struct edit_use *use, const struct shown *shown)
{
    const struct edit *edit = use->edit;
    int32_t last = -1, lacks = -1;
    for (int32_t layer = N_LAYERS - 1; layer >= 0; layer--) {
        bool seen = shown->seen[layer + 1];
        if (seen && last < 0)
            last = layer;
        if (!seen && is_for(use, layer))
            lacks = layer;
    }
    if (lacks < 0)
        return 0;
    if (last < 0)
        return err_set(err, -EINVAL,
                       EDIT_PROBLEM "%s is in no layer: leave \"layers\" out, and take one vector",
                       edit->name, edit->site);
    return err_set(err, -EINVAL,
                   EDIT_PROBLEM "%s has no layer %d: forwards had it in layers up to %d",
                   edit->name, edit->site, lacks, last);
}

/* Is the step over that showed its site first? Then its layers are known. */
static bool is_shown(const struct edit *edit)
{
    uint64_t next = atomic_load_relaxed(&session.next_step);
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        uint64_t step = is_of(i, edit) ? atomic_load_acquire(&place_of(i)->step) : 0;
        if (step && next > step)
            return true;
    }
    return false;
}

static int check_layers(struct err *err, const struct edit_use *use)
{
    struct shown shown;
    if (!is_shown(use->edit))
        return 0;
    shown_of(use->edit, &shown);
    return check_seen_layers(err, use, &shown);
}

static const char *times(uint32_t n)
{
    return n == 1 ? "time" : "times";
}

/* How often forwards may differ, so this is said once they were. A pass that no launch could tell was missed as that. */
static int check_seen_passes(struct err *err, const struct edit_use *use, const struct shown *shown)
{
    const struct edit *edit = use->edit;
    uint32_t most = 0;
    for (int32_t layer = -1; edit->pass && layer < N_LAYERS; layer++) {
        uint32_t n = shown->passes[layer + 1];
        if (!n || !edit_takes_layer(use, layer))
            continue;
        if (n < edit->pass && layer >= 0 && is_for(use, layer))
            return err_set(err, -EINVAL,
                           EDIT_PROBLEM
                           "layer %d of %s has no pass %u: it ran %u %s in a forward at most",
                           edit->name, layer, edit->site, edit->pass - 1, n, times(n));
        most = n > most ? n : most;
    }
    if (!most || most >= edit->pass)
        return 0;
    return err_set(err, -EINVAL,
                   EDIT_PROBLEM "%s has no pass %u: layers ran %u %s in a forward at most",
                   edit->name, edit->site, edit->pass - 1, most, times(most));
}

bool places_lack(struct err *err, const struct edit_use *use)
{
    struct shown shown;
    shown_of(use->edit, &shown);
    return shown.any &&
           (check_seen_layers(err, use, &shown) || check_seen_passes(err, use, &shown));
}

bool places_seen(const struct edit_use *use)
{
    struct shown shown;
    shown_of(use->edit, &shown);
    return shown.any;
}

int places_check(struct err *err, const struct edit_version *v, uint32_t first,
                 const struct edit_ranks *ranks)
{
    int r = 0;
    for (uint32_t i = first; i < v->n && !r; i++) {
        const struct edit *edit = v->uses[i].edit;
        for (uint32_t s = 0; s < session.spec->n_sites && !r; s++) {
            struct dmi_edit_cut cut;
            if (!is_of(s, edit))
                continue;
            r = check_graphs(err, edit, place_of(s));
            if (!r)
                r = check_rank(err, edit, ranks, &cut);
            if (!r)
                r = check_rows(err, v, i, session_site(s)->write.place, cut);
        }
        if (!r)
            r = check_layers(err, &v->uses[i]);
    }
    return r;
}

void places_reset(void)
{
    memset(places, 0, sizeof places);
}
