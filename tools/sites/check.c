/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/check.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/words.h"
#include "policy/nearest.h"
#include "policy/spec.h"
#include "tools/sites/check_values.h"
#include "tools/sites/finding.h"
#include "tools/sites/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What became of one site. */
struct tally {
    uint32_t n_launches, n_compared;
    uint32_t n_no_value, n_outside, n_differ;
    uint32_t n_params;       /* of the latest kernel in which an expression had no value */
    uint32_t n_other_counts; /* forwards with another number of launches than expected */
    uint32_t least, most;    /* such numbers */
    uint32_t first_differ;   /* launch */
    float error;             /* the largest of those compared */
    uint32_t occ;            /* in the forward under way */
};

struct checking {
    const struct spec *spec;
    struct finding found;
    bool compares; /* there is a reference */
    struct tally *tallies;
    struct spec_match *matches; /* by kernel of the recording */
    int kind;                   /* of the forward under way, -1: none yet */
    uint32_t n_forwards[SPEC_MAX_KINDS];
};

static void checking_deinit(struct checking *c)
{
    finding_deinit(&c->found);
    free(c->tallies);
    free(c->matches);
}

/* A recording holds launches: neither taps, nor NVTX ranges. */
static bool is_checked(const struct spec_site *site)
{
    return site->about.kernel && !site->about.tap && !site->nvtx.pattern;
}

/* ------------------------------------------------------------------------- values */

/* The forward of the recording that a launch belongs to, NULL: to none that is known. */
static const struct forward *forward_of(const struct checking *c, uint32_t launch)
{
    return FIRST(i, c->found.forwards.n,
                 launch >= c->found.forwards.at[i].begin && launch < c->found.forwards.at[i].end,
                 &c->found.forwards.at[i], NULL);
}

static int site_in_reference(const struct checking *c, const char *name)
{
    return FIRST(i, c->found.ref.n_sites, !strcmp(c->found.ref.sites[i].name, name), (int)i, -1);
}

/* Rows that a site has: the forward's, or of each request its last. Return: how many. */
static uint32_t rows_of(const struct checking *c, const struct spec_site *site,
                        const struct forward *f, uint32_t *rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct ref_request *q = activations_request(&c->found.ref, f->rows[i]);
        uint32_t next = f->rows[i] + 1;
        bool last =
            next >= q->first_row + q->n_rows || forward_row(f, c->found.ref.same_as[next]) < 0;
        if (site->about.row != DMI_ROW_REQUEST || last)
            rows[n++] = f->rows[i];
    }
    return n;
}

static void compare(struct checking *c, uint32_t site, uint32_t launch, uint32_t occ,
                    const struct extent *e)
{
    const struct spec_site *s = &c->spec->sites[site];
    struct tally *t = &c->tallies[site];
    const struct forward *f = forward_of(c, launch);
    int in_reference = site_in_reference(c, s->about.name);
    _cleanup_(freep) uint32_t *rows = f ? malloc((f->n_rows + 1) * sizeof *rows) : NULL;
    if (!rows || in_reference < 0 ||
        s->n_row_dims > 1) /* rows of two dimensions are no tokens in a row */
        return;
    struct subject subject = { (uint32_t)in_reference, extent_layer(s, occ), rows,
                               rows_of(c, s, f, rows),
                               s->when == SPEC_BEFORE ? REC_BEFORE(launch) : REC_AFTER(launch) };
    float error = extent_error(&c->found.probe, s, e, &subject);
    if (isnan(error))
        return;
    t->n_compared++;
    if (error > layout_row_limit(&c->found.probe, subject.site, s->about.dtype) && !t->n_differ++)
        t->first_differ = launch;
    t->error = error > t->error ? error : t->error;
}

/* ------------------------------------------------------------------------- launches */

static bool belongs(const struct checking *c, uint32_t site)
{
    int kind = c->spec->sites[site].kind;
    return kind < 0 || kind == c->kind;
}

static void look(struct checking *c, uint32_t site, uint32_t launch)
{
    const struct spec_site *s = &c->spec->sites[site];
    struct tally *t = &c->tallies[site];
    struct extent e;
    uint32_t occ = t->occ++;
    if (!spec_takes_occurrence(s, occ))
        return;
    t->n_launches++;
    switch (extent_at(&c->found.rec, s, &c->found.rec.launches[launch], occ, &e)) {
    case EXTENT_NO_VALUE:
        t->n_no_value++;
        t->n_params = c->found.rec.kernels[c->found.rec.launches[launch].head.kernel].n_params;
        break;
    case EXTENT_OUTSIDE: t->n_outside++; break;
    case EXTENT_EMPTY: break;
    case EXTENT_GOOD:
        if (c->compares)
            compare(c, site, launch, occ, &e);
    }
}

/* The forward under way ends: were its launches as many as the spec expects? */
static void end_forward(struct checking *c, bool whole)
{
    for (uint32_t i = 0; i < c->spec->n_sites; i++) {
        struct tally *t = &c->tallies[i];
        int64_t expect = c->spec->sites[i].about.expect;
        if (whole && belongs(c, i) && expect >= 0 && t->occ != expect) {
            t->least = !t->n_other_counts || t->occ < t->least ? t->occ : t->least;
            t->most = t->occ > t->most ? t->occ : t->most;
            t->n_other_counts++;
        }
        t->occ = 0;
    }
}

static void walk(struct checking *c)
{
    const struct recording *rec = &c->found.rec;
    bool in_forward = !c->spec->n_kinds;
    c->kind = -1;
    for (uint32_t l = 0; l < rec->n_launches; l++) {
        const struct spec_match *m = &c->matches[rec->launches[l].head.kernel];
        if (m->kind >= 0) {
            end_forward(c, in_forward);
            c->kind = m->kind;
            c->n_forwards[m->kind]++;
            in_forward = true;
        }
        for (uint32_t i = 0; in_forward && i < m->n_sites; i++)
            if (belongs(c, m->sites[i]) && is_checked(&c->spec->sites[m->sites[i]]))
                look(c, m->sites[i], l);
    }
    /* what budget or kill cut off lacks launches */
    end_forward(c, in_forward && rec->ended && rec->end.reason != DMI_RECORDING_BUDGET);
}

/* ------------------------------------------------------------------------- the report */

static bool is_bad(const struct checking *c, uint32_t site)
{
    const struct tally *t = &c->tallies[site];
    if (!is_checked(&c->spec->sites[site]))
        return false;
    return !t->n_launches || t->n_no_value || t->n_outside || t->n_differ || t->n_other_counts;
}

/* How many kernels there are, and those whose names are near to a pattern: renamed, perhaps. */
static void put_nearest(const struct checking *c, const char *pattern)
{
    const struct recording *rec = &c->found.rec;
    char near[512];
    _cleanup_(freep) const char **names = malloc((rec->n_kernels + 1) * sizeof *names);
    for (size_t i = 0; names && i < rec->n_kernels; i++)
        names[i] = rec->kernels[i].name;
    if (!names)
        return;
    nearest_kernels(pattern, names, rec->n_kernels, near, sizeof near);
    printf(", of %zu %s%s", rec->n_kernels, word_for(rec->n_kernels, "kernel", "kernels"), near);
}

static void put_site_report(const struct checking *c, uint32_t site)
{
    const struct spec_site *s = &c->spec->sites[site];
    const struct tally *t = &c->tallies[site];
    printf("%-8s %-8s %-14s",
           is_bad(c, site) ? "drifted"
           : is_checked(s) ? "good"
                           : "-",
           s->kind < 0 ? "any" : c->spec->kinds[s->kind].name, s->about.name);
    if (!is_checked(s)) {
        puts(" a tap, or in an NVTX range: no recording holds it");
        return;
    }
    if (!t->n_launches) {
        printf(" no launch matches %s", s->about.kernel);
        put_nearest(c, s->about.kernel);
        putchar('\n');
        return;
    }
    printf(" %u %s", t->n_launches, word_for(t->n_launches, "launch", "launches"));
    if (t->n_compared)
        printf(", %u compared, error %.1e", t->n_compared, (double)t->error);
    if (t->n_other_counts)
        printf("; %u %s with %u to %u launches, not %lld", t->n_other_counts,
               word_for(t->n_other_counts, "forward", "forwards"), t->least, t->most,
               (long long)s->about.expect);
    if (t->n_no_value) {
        printf("; an expression has no value in %u", t->n_no_value);
        if (t->n_params != DMI_RECORDING_NO_LAYOUT)
            printf(" (the kernel has %u %s)", t->n_params,
                   word_for(t->n_params, "parameter", "parameters"));
    }
    if (t->n_outside)
        printf("; outside of its allocation in %u", t->n_outside);
    if (t->n_differ)
        printf("; another value in %u, first in launch %u", t->n_differ, t->first_differ);
    putchar('\n');
}

/* What was found of that name in the recording. */
static void put_mend(const struct checking *c, const char *name)
{
    struct scene scene = finding_scene(&c->found);
    const struct entries *all = &c->found.entries;
    for (size_t i = 0; i < all->n; i++)
        if (!all->at[i].why && !strcmp(c->found.ref.sites[all->at[i].site].name, name))
            write_site(stdout, &scene, &all->at[i]);
}

static bool report(const struct checking *c)
{
    bool good = true;
    for (uint32_t k = 0; k < c->spec->n_kinds; k++)
        if (!c->n_forwards[k]) {
            good = false;
            printf("no forward of kind %s: %s\n", c->spec->kinds[k].name,
                   c->spec->kinds[k].kernel ? "no launch matches what begins it"
                                            : "it begins with a step or an NVTX range, which no "
                                              "recording holds");
        }
    for (uint32_t i = 0; i < c->spec->n_sites; i++) {
        if (!spec_is_second(&c->spec->sites[i]))
            put_site_report(c, i);
        good = good && !is_bad(c, i);
    }
    for (uint32_t i = 0; c->compares && i < c->spec->n_sites; i++) {
        bool told = false;
        for (uint32_t k = 0; k < i; k++)
            told = told || (is_bad(c, k) &&
                            !strcmp(c->spec->sites[k].about.name, c->spec->sites[i].about.name));
        if (is_bad(c, i) && !told)
            put_mend(c, c->spec->sites[i].about.name);
    }
    return good;
}

/* ------------------------------------------------------------------------- all of it */

static int load_spec(struct err *err, const char *path, struct spec **out)
{
    struct spec_errors errors = { 0 };
    int r = spec_load(path, NULL, 0, &errors, out);
    for (size_t i = 0; i < errors.n_lines; i++)
        fprintf(stderr, "%s\n", errors.lines[i]);
    spec_errors_deinit(&errors);
    if (r < 0)
        return err_set_errno(err, -r, "%s: cannot be read", path);
    return r ? err_set(err, -EINVAL, "%s: not a good HookSpec", path) : 0;
}

static int open_all(struct err *err, const struct check_options *o, struct checking *c)
{
    if (!o->reference) {
        int r = recording_open(err, o->recording, &c->found.rec);
        return r                                               ? r
               : memory_build(&c->found.rec, &c->found.memory) ? err_set(err, -ENOMEM, "no memory")
                                                               : 0;
    }
    c->compares = true;
    int r = finding_open(err, o->recording, o->reference, &c->found);
    return r ? r : finding_find(err, &c->found);
}

static int run(struct err *err, const struct check_options *o, struct checking *c, bool *good)
{
    TRY(open_all(err, o, c));
    c->tallies = calloc(c->spec->n_sites + 1, sizeof *c->tallies);
    c->matches = calloc(c->found.rec.n_kernels + 1, sizeof *c->matches);
    if (!c->tallies || !c->matches)
        return err_set(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < c->found.rec.n_kernels; i++)
        if (!spec_match_kernel(c->spec, c->found.rec.kernels[i].name, NULL, &c->matches[i]))
            c->matches[i] = (struct spec_match){ .kind = -1 };
    walk(c);
    *good = report(c);
    return 0;
}

int check(struct err *err, const struct check_options *o, bool *good)
{
    struct spec *spec = NULL;
    struct checking c = { 0 };
    int r = load_spec(err, o->spec, &spec);
    c.spec = spec;
    if (!r)
        r = run(err, o, &c, good);
    checking_deinit(&c);
    spec_free(spec);
    return r;
}
