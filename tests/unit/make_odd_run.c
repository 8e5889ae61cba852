/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a small run of a kind that is rare, for tests of programs that read runs:
 *
 *     make_odd_run OUT again    request "r" has positions 0-3; 2 and 3 are computed again, then 3 once more
 *     make_odd_run OUT names    names and ids that a terminal, a file format or a key could trip over
 *     make_odd_run OUT many     more tensors than a program can use: 65,000 requests at 100 sites
 *     make_odd_run OUT flat     rows without elements
 *     make_odd_run OUT drafts   prompts, decodes, drafts of which some are rejected, preemption, requests that end
 *     make_odd_run OUT changes  something is changed before each forward; three segments or more
 *     make_odd_run OUT twice    two forwards of request "a"; the second record keeps row 1 twice
 *     make_odd_run OUT crowd    60,000 requests over 600 steps, each with an outcome and an end
 *
 * Rows are i32, one element wide: 100 * forward + position, in `flat` none.
 */
#include "storage/writer/run.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SITES 100

struct writer {
    struct run *run;
    uint64_t launch, forward;
    uint32_t n_sites, width;
    const uint32_t *kept; /* of the records that follow; NULL: all rows */
};

static int put(struct writer *w, uint32_t site, const int32_t *rows, uint32_t n_rows)
{
    struct run_record record = {
        .site = site,
        .layer = RUN_NO_LAYER,
        .dtype = DMI_DTYPE_I32,
        .launch = ++w->launch,
        .forward = w->forward,
        .step = w->forward,
        .n_dims = 2,
        .dims = { n_rows, w->width },
        .data = rows,
        .n_bytes = (uint64_t)n_rows * w->width * 4,
        .kept = w->kept,
    };
    struct dmi_site_counters *c = &run_counters(w->run)->sites[site];
    struct dmi_tally *tallies[] = { &c->expected, &c->captured };
    for (int i = 0; i < 2; i++) {
        tallies[i]->records++;
        tallies[i]->rows += n_rows;
        tallies[i]->bytes += record.n_bytes;
    }
    return run_append(w->run, &record, 1);
}

/* A forward of these spans, whose rows are theirs in order; a record for every site. */
static int put_forward(struct writer *w, struct dmi_span *spans, uint32_t n_spans)
{
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        spans[i].first_row = n_rows;
        n_rows += spans[i].n_tokens;
    }
    int32_t *rows = calloc(n_rows + 1, sizeof *rows);
    if (!rows)
        return -1;
    for (uint32_t i = 0; i < n_spans; i++)
        for (uint32_t k = 0; k < spans[i].n_tokens; k++)
            rows[spans[i].first_row + k] =
                (int32_t)(100 * w->forward + (uint64_t)spans[i].first_position + k);
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .step = w->forward,
                                   .n_rows = n_rows,
                                   .n_spans = n_spans,
                                   .span_size = sizeof(struct dmi_span),
                                   .spans = spans };
    int r = run_step(w->run, w->forward, &step);
    for (uint32_t s = 0; !r && s < w->n_sites; s++)
        r = put(w, s, rows, n_rows);
    run_counters(w->run)->forwards++;
    w->forward++;
    free(rows);
    return r;
}

static int again(struct writer *w)
{
    struct dmi_span steps[][1] = {
        { { .request_id = "r", .first_position = 0, .n_tokens = 4 } },
        { { .request_id = "r", .first_position = 2, .n_tokens = 2 } },
        { { .request_id = "r", .first_position = 3, .n_tokens = 1 } },
    };
    int r = 0;
    for (size_t i = 0; !r && i < sizeof steps / sizeof steps[0]; i++)
        r = put_forward(w, steps[i], 1);
    return r;
}

static int names(struct writer *w)
{
    struct dmi_span spans[] = {
        { .request_id = "a\nDAMAGED: forged", .n_tokens = 1 },
        { .request_id = "\x1b[31mred", .n_tokens = 1 },
        { .request_id = "\xc2\x9b"
                        "c1",
          .n_tokens = 1 },
        { .request_id = "\xe2\x80\xae"
                        "bidi",
          .n_tokens = 1 },
        { .request_id = "\xff", .n_tokens = 1 },
        { .request_id = "\xfe", .n_tokens = 1 },
        { .request_id = "plain", .n_tokens = 1 },
    };
    return put_forward(w, spans, sizeof spans / sizeof spans[0]);
}

static int many(struct writer *w)
{
    enum { N = 65000 };
    static char ids[N][8];
    struct dmi_span *spans = calloc(N, sizeof *spans);
    int r = spans ? 0 : -1;
    for (int i = 0; !r && i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        spans[i] = (struct dmi_span){ .request_id = ids[i], .n_tokens = 1 };
    }
    if (!r)
        r = put_forward(w, spans, N);
    free(spans);
    return r;
}

static int flat(struct writer *w)
{
    struct dmi_span spans[] = { { .request_id = "r", .n_tokens = 5 } };
    return put_forward(w, spans, 1);
}

/* The positions of a request as spans say them: see tests/unit/test_dump_requests.py. */
static int drafts(struct writer *w)
{
    enum { PRE = DMI_PHASE_PREFILL, DEC = DMI_PHASE_DECODE, DRA = DMI_PHASE_DRAFT };
    struct dmi_span steps[][3] = {
        { { .request_id = "a", .n_tokens = 4, .phase = PRE, .n_prompt = 4 },
          { .request_id = "b", .first_position = 2, .n_tokens = 3, .n_cached = 2, .phase = PRE } },
        { { .request_id = "a", .first_position = 4, .n_tokens = 3, .phase = DRA, .n_prompt = 4 },
          { .request_id = "b", .first_position = 5, .n_tokens = 1, .phase = DEC } },
        { { .request_id = "a", .first_position = 6, .n_tokens = 3, .phase = DRA, .n_prompt = 4 },
          { .request_id = "b", .first_position = 6, .n_tokens = 1, .phase = DEC } },
        { { .request_id = "a", .first_position = 7, .n_tokens = 1, .phase = DEC, .n_prompt = 4 },
          { .request_id = "b", .first_position = 0, .n_tokens = 4, .phase = PRE },
          { .request_id = "c", .n_tokens = 1, .phase = PRE, .n_prompt = 1 } },
        { { .request_id = "b", .first_position = 4, .n_tokens = 2, .phase = PRE },
          { .request_id = "d", .n_tokens = 2, .phase = PRE, .flags = DMI_SPAN_LAST } },
    };
    static const uint32_t n[] = { 2, 2, 2, 3, 2 };
    int r = 0;
    for (size_t i = 0; !r && i < sizeof steps / sizeof steps[0]; i++) {
        r = put_forward(w, steps[i], n[i]);
        if (i == 1)
            r |= run_accept(w->run, "a", 1, 2);
        if (i == 2)
            r |= run_accept(w->run, "a", 2, 1);
        if (i == 3)
            r |= run_request_end(w->run, "a", DMI_END_LENGTH) |
                 run_request_end(w->run, "c", DMI_END_ABORTED) |
                 run_request_end(w->run, "never", DMI_END_ABORTED);
    }
    return r;
}

static int crowd(struct writer *w)
{
    enum { STEPS = 600, EACH = 100 };
    static char ids[EACH][16];
    struct dmi_span spans[EACH];
    int r = 0;
    for (int i = 0; !r && i < STEPS; i++) {
        for (int k = 0; k < EACH; k++) {
            snprintf(ids[k], sizeof ids[k], "r%d", EACH * i + k);
            spans[k] = (struct dmi_span){
                .request_id = ids[k], .n_tokens = 3, .phase = DMI_PHASE_DRAFT, .n_prompt = 1
            };
        }
        r = put_forward(w, spans, EACH);
        for (int k = 0; !r && k < EACH; k++)
            r = run_accept(w->run, ids[k], (uint64_t)i, (uint32_t)k % 4) |
                run_request_end(w->run, ids[k], DMI_END_STOP);
    }
    return r;
}

static int changes(struct writer *w)
{
    int r = 0;
    for (uint64_t i = 0; !r && i < 12; i++) {
        char what[32];
        struct dmi_span span = { .request_id = "a", .first_position = (int64_t)i, .n_tokens = 1 };
        snprintf(what, sizeof what, "sites %s \"s%u\"\n", i % 2 ? "on" : "off", (unsigned)i);
        r = run_change(w->run, &(struct run_change){ 1000 + i, w->launch + 1, w->forward, what });
        r |= put_forward(w, &span, 1);
    }
    return r;
}

static int twice(struct writer *w)
{
    static const uint32_t contradiction[] = { 1, 0, 1 };
    struct dmi_span spans[] = { { .request_id = "a", .n_tokens = 3 } };
    int r = put_forward(w, spans, 1);
    w->kept = contradiction;
    spans[0].first_position = 3;
    return r ? r : put_forward(w, spans, 1);
}

static const struct kind {
    const char *name;
    int (*put)(struct writer *);
    uint32_t n_sites, width;
} kinds[] = {
    { "again", again, 1, 1 },     { "names", names, 4, 1 },   { "many", many, MOST_SITES, 1 },
    { "flat", flat, 1, 0 },       { "drafts", drafts, 1, 1 }, { "crowd", crowd, 1, 1 },
    { "changes", changes, 1, 1 }, { "twice", twice, 1, 1 },
};

int main(int argc, char **argv)
{
    static char site_names[MOST_SITES][16];
    static struct dmi_site sites[MOST_SITES];
    const struct kind *kind = NULL;
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof kinds[0]; i++)
        kind = strcmp(argv[2], kinds[i].name) ? kind : &kinds[i];
    if (!kind)
        return 2;
    for (uint32_t s = 0; s < kind->n_sites; s++) {
        snprintf(site_names[s], sizeof site_names[s], "s%u", s);
        sites[s] = (struct dmi_site){
            .name = site_names[s], .kernel = "k", .dtype = DMI_DTYPE_I32, .scale = 1, .expect = -1
        };
    }
    if (kind->put == names) {
        sites[0].name = "x";
        sites[1].name = "__metadata__";
        sites[1].row = DMI_ROW_NONE;
        sites[3].name = "x~2";
        sites[2].name = "y\ndmi-dump: DAMAGED: forged";
        sites[2].note = "\xe2\x80\xae"
                        "note\n";
    }
    struct writer w = { .n_sites = kind->n_sites, .width = kind->width };
    struct run_options options = {
        .out_dir = argv[1], .sites = sites, .n_sites = kind->n_sites, .spec_text = ""
    };
    if (kind->put == changes)
        options.segment_bytes = 3000;
    struct err err = { 0 };
    if (run_open(&err, &options, &w.run)) {
        fprintf(stderr, "make_odd_run: %s\n", err.msg);
        return 1;
    }
    int r = kind->put(&w);
    return run_close(w.run) || r;
}
