/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/finding.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "tools/common/ticker.h"
#include "tools/sites/again.h"
#include "tools/sites/guessing.h"
#include "tools/sites/look.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void finding_deinit(struct finding *m)
{
    entries_deinit(&m->entries);
    free(m->sightings.at);
    forwards_deinit(&m->forwards);
    free(m->hits.at);
    activations_deinit(&m->ref);
    memory_deinit(&m->memory);
    recording_deinit(&m->rec);
}

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "no memory");
}

int finding_open(struct err *err, const char *recording, const char *reference, struct finding *m)
{
    *m = (struct finding){ 0 };
    int r = recording_open(err, recording, &m->rec);
    if (!r)
        r = activations_open(err, reference, &m->ref);
    if (!r && memory_build(&m->rec, &m->memory))
        r = no_memory(err);
    m->probe = (struct probe){ .rec = &m->rec,
                               .memory = &m->memory,
                               .ref = &m->ref,
                               .site = -1,
                               .scale = 1,
                               .types = VIEW_FLOATS };
    return r;
}

/* ------------------------------------------------------------------------- tensors in another scale */

/* 1/8 and 1e12 are meant where 0.12503 and 1.002e12 are found. */
static float round_scale(float found)
{
    float size = fabsf(found), best = size, least = 0.01f * size;
    float candidates[] = { powf(10, roundf(log10f(size))), exp2f(roundf(log2f(size))),
                           1 / sqrtf(roundf(1 / (size * size))) };
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (isfinite(candidates[i]) && fabsf(candidates[i] - size) < least) {
            least = fabsf(candidates[i] - size);
            best = candidates[i];
        }
    return copysignf(best, found);
}

/* The last row of the kind's last forward: a value that nothing before it held. */
static float scale_of(const struct finding *m, const struct probe *probe, uint32_t kind,
                      uint32_t site)
{
    for (size_t i = m->forwards.n; i > 0; i--) {
        const struct forward *f = &m->forwards.at[i - 1];
        if (f->kind != kind)
            continue;
        for (int l = REF_NO_LAYER; l < m->ref.sites[site].n_layers; l++) {
            const float *row = activations_row(&m->ref, site, l, f->rows[f->n_rows - 1]);
            float scale = row ? probe_scale(probe, f->begin, f->end, row) : 0;
            if (row)
                return scale == 0 ? 0 : round_scale(scale);
        }
        return 0;
    }
    return 0;
}

static int look_scaled(struct finding *m, const struct probe *probe)
{
    struct hits hits = { 0 };
    int r = look_for_beginnings(probe, &hits);
    if (!r)
        r = sight_hits(probe, &m->forwards, &hits, &m->sightings);
    free(hits.at);
    return r;
}

/* @done: the scale that was looked for last. */
static int find_scaled(struct finding *m, uint32_t kind, uint32_t site, float *done)
{
    static const uint32_t types[] = { VIEW_FLOATS, VIEW_SMALL_FLOATS };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct probe probe = m->probe;
        probe.types = types[i];
        float scale = scale_of(m, &probe, kind, site);
        if (scale == 0)
            continue;
        bool again = scale == *done;
        probe.site = (int)site;
        probe.scale = *done = scale;
        return again ? 0 : look_scaled(m, &probe);
    }
    return 0;
}

static int find_all_scaled(struct finding *m, const bool *open)
{
    int r = 0;
    for (uint32_t s = 0; !r && s < m->ref.n_sites; s++) {
        float done = 1;
        for (uint32_t k = 0; !r && k < m->kinds.n; k++)
            if (open[k * m->ref.n_sites + s] && m->ref.sites[s].width >= PROBE_VALUES)
                r = find_scaled(m, k, s, &done);
    }
    return r;
}

/* What the first look did not show: in 8 bits, in other scales, of few values, laid out in other ways. */
static int look_again(struct finding *m)
{
    size_t n = m->sightings.n;
    bool *open = again_open(&m->probe, &m->forwards, &m->kinds, &m->sightings);
    int r = open ? again_small(&m->probe, &m->forwards, open, &m->sightings) : -ENOMEM;
    free(open);
    open = r ? NULL : again_open(&m->probe, &m->forwards, &m->kinds, &m->sightings);
    ticker_say("looking for the reference in other scales (4 of 6)");
    if (!r)
        r = open ? find_all_scaled(m, open) : -ENOMEM;
    free(open);
    ticker_say("looking for integers, rows of few values and other layouts (5 of 6)");
    if (!r)
        r = guessing_look(&m->probe, &m->forwards, &m->kinds, &m->sightings);
    if (!r)
        sight_compete(&m->sightings, n);
    return r;
}

/* ------------------------------------------------------------------------- what stands out */

/* Errors far beyond those of this engine's arithmetic are likenesses. */
static void drop_far(struct sightings *all)
{
    _cleanup_(freep) float *errors = malloc((all->n + 1) * sizeof *errors);
    size_t n = 0;
    for (size_t i = 0; errors && i < all->n; i++)
        if (all->at[i].error > 0)
            errors[n++] = all->at[i].error;
    if (!n)
        return;
    float limit = 20 * probe_median(errors, n) + 1e-3f;
    n = 0;
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].error <= limit)
            all->at[n++] = all->at[i];
    all->n = n;
}

struct scene finding_scene(const struct finding *m)
{
    return (struct scene){ &m->probe, &m->forwards, &m->kinds, &m->sightings };
}

static int find(struct err *err, struct finding *m)
{
    ticker_say("looking for rows of the reference in what launches wrote (1 of 6)");
    if (look_for_beginnings(&m->probe, &m->hits) ||
        forwards_find(&m->probe, &m->hits, &m->forwards))
        return no_memory(err);
    if (!m->forwards.n)
        return err_set(err, -ENOENT,
                       "nothing in the recording is a row of the reference: other tokens, another "
                       "model, or types of values that are not looked for");
    ticker_say("comparing what lies there with the reference (2 of 6)");
    TRY(kinds_find(err, &m->rec, &m->forwards, &m->kinds));
    if (sight_hits(&m->probe, &m->forwards, &m->hits, &m->sightings))
        return no_memory(err);
    sight_compete(&m->sightings, 0);
    drop_far(&m->sightings);
    ticker_say("looking for the reference in 8 bits (3 of 6)");
    m->probe.usual = fminf(probe_usual_error(&m->hits), PROBE_ERROR);
    if (sight_integers(&m->probe, &m->forwards, &m->sightings) || look_again(m))
        return no_memory(err);
    ticker_say("finding the arguments that lead there (6 of 6)");
    struct scene scene = finding_scene(m);
    return entries_find(&scene, &m->entries) ? no_memory(err) : 0;
}

int finding_find(struct err *err, struct finding *m)
{
    ticker_start(0);
    int r = find(err, m);
    ticker_stop();
    return r;
}
