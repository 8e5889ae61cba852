/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/version.h"

#include "preload/context/edit_region.h"
#include "preload/edit/in_flight.h"
#include "preload/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A text of edits that some version has. */
struct source {
    uint32_t refs; /* atomic */
    struct edits *edits;
};

/* Tables, shared by versions that differ in no edit. */
struct edit_block {
    struct in_flight in_flight; /* first */
    uint32_t refs;              /* atomic */
    struct edit_table table;
    uint32_t at; /* where it lies in the region; 0: nowhere */
};

/* What a version holds beside what others see. */
struct version {
    struct edit_version shown; /* first: a struct edit_version * is one of these */
    struct source **sources;   /* one a use */
};

static uint64_t next_version = 1, next_uid = 1; /* one thread at a time */

/* ------------------------------------------------------------------------- sources and blocks */

static void source_release(struct source *s)
{
    if (s && atomic_sub_acq_rel(&s->refs, 1) == 1) {
        edits_free(s->edits);
        free(s);
    }
}

/* No kernel reads it any more. */
static void block_free(struct in_flight *of)
{
    struct edit_block *b = (struct edit_block *)of;
    if (b->at)
        edit_region_free(b->at); /* with its bytes */
    else
        edit_table_deinit(&b->table);
    free(b);
}

static void block_release(struct edit_block *b)
{
    if (!b || atomic_sub_acq_rel(&b->refs, 1) != 1)
        return;
    in_flight_wait(&b->in_flight, block_free);
    in_flight_settle();
}

/* ------------------------------------------------------------------------- versions */

static struct version *of(const struct edit_version *v)
{
    return (struct version *)(uintptr_t)v;
}

static void version_free(struct version *v)
{
    for (uint32_t i = 0; i < v->shown.n; i++) {
        free(v->shown.uses[i].times);
        source_release(v->sources[i]);
    }
    block_release(v->shown.block);
    edit_rows_deinit(&v->shown.every);
    free(v->shown.uses);
    free(v->sources);
    free(v);
}

void version_release(struct edit_version *v)
{
    /* whoever is last sees what the others did with it */
    if (v && atomic_sub_acq_rel(&v->refs, 1) == 1)
        version_free(of(v));
}

const struct edit_table *version_table(const struct edit_version *v)
{
    return &v->block->table;
}

struct edit_section version_section(struct edit_version *v)
{
    return (struct edit_section){
        .uses = v->uses, .n = v->n, .table = v->block->at, .owner = v, .live = true, .settled = true
    };
}

static struct version *version_alloc(uint32_t n)
{
    struct version *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->shown.refs = 1;
    v->shown.uses = calloc(n + 1, sizeof *v->shown.uses);
    v->sources = calloc(n + 1, sizeof *v->sources);
    if (v->shown.uses && v->sources)
        return v;
    free(v->shown.uses);
    free(v->sources);
    free(v);
    return NULL;
}

/* Return: false without memory. */
static bool copy_use(struct version *v, const struct version *from, uint32_t i)
{
    uint32_t at = v->shown.n++;
    v->shown.uses[at] = from->shown.uses[i];
    v->sources[at] = from->sources[i];
    atomic_add_relaxed(&v->sources[at]->refs, 1);
    if (!v->shown.uses[at].times)
        return true;
    v->shown.uses[at].times = malloc(sizeof *v->shown.uses[at].times);
    if (v->shown.uses[at].times)
        *v->shown.uses[at].times = *from->shown.uses[i].times;
    return v->shown.uses[at].times != NULL;
}

static bool add_source(struct version *v, struct edits *edits)
{
    struct source *s = calloc(1, sizeof *s);
    if (!s) {
        edits_free(edits);
        return false;
    }
    *s = (struct source){ .refs = edits->n, .edits = edits };
    for (uint32_t i = 0; i < edits->n; i++) {
        v->shown.uses[v->shown.n] =
            (struct edit_use){ .of = edits, .edit = &edits->list[i], .uid = next_uid++ };
        v->sources[v->shown.n++] = s;
    }
    if (!edits->n) {
        edits_free(edits);
        free(s);
    }
    return true;
}

static int add_block(struct err *err, struct version *v, const struct edit_version *before)
{
    if (before) {
        v->shown.block = before->block;
        atomic_add_relaxed(&before->block->refs, 1);
        return 0;
    }
    in_flight_settle();
    struct edit_block *b = v->shown.block = calloc(1, sizeof *b);
    if (!b)
        return err_set(err, -ENOMEM, "no memory");
    b->refs = 1;
    int r = edit_table_build(v->shown.uses, v->shown.n, session.spec, &b->table);
    return r ? err_set(err, r, "no memory for the table of its edits")
             : edit_region_place(err, b->table.bytes, b->table.n, &b->at);
}

struct edit_version *version_new(struct err *err, const struct edit_version *before,
                                 uint32_t without, struct edits *more)
{
    uint32_t n = (before ? before->n : 0) + (more ? more->n : 0);
    struct version *v = n <= EDITS_MAX ? version_alloc(n) : NULL;
    if (!v) {
        edits_free(more);
        err_set(err, -ENOSPC, n > EDITS_MAX ? "more than %d edits" : "no memory for %d edits",
                EDITS_MAX);
        return NULL;
    }
    bool good = true;
    for (uint32_t i = 0; before && i < before->n && good; i++)
        good = i == without || copy_use(v, of(before), i);
    if (more)
        good = add_source(v, more) && good;
    bool same = before && without == UINT32_MAX && !more;
    int r = good ? add_block(err, v, same ? before : NULL) : err_set(err, -ENOMEM, "no memory");
    v->shown.number = next_version;
    next_version += !r;
    if (!r)
        return &v->shown;
    version_free(v);
    return NULL;
}

/* ------------------------------------------------------------------------- places */

bool version_acts(const struct edit_version *v, uint32_t site)
{
    const struct spec_site *s = session_site(site);
    for (uint32_t i = 0; i < v->n; i++)
        if (!v->uses[i].off && (s->action == SPEC_SAVE) == (edit_saves(v->uses[i].edit) != NULL) &&
            !strcmp(v->uses[i].edit->site, s->about.name))
            return true;
    return false;
}

void versions_reset(void)
{
    next_version = next_uid = 1;
}
