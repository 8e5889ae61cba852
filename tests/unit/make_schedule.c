/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the run of one rank as a text on stdin says, for tests of what readers make of it:
 *
 *     make_schedule OUT JOB TP TP_SIZE PP PP_SIZE [hidden|bidirectional|SEGMENT_BYTES|sum|dim|over|none|row|scale]
 *     step NUMBER ROWS ID:FIRST_ROW:N:POSITION:PHASE:PROMPT:FLAGS[:CACHED[=TOKEN_ID,...]]...
 *     rec SITE LAYER COLUMN N_COLUMNS TIMES     all rows of the step, those columns; LAYER -1: none
 *     put SITE LAYER N_COLUMNS DTYPE VALUE...    the same with these values, row by row: f32, f64; bf16 by cutting; of any
 *                                                other type the low bits of the integers that the values are
 *     wide LAYER N_COLUMNS [SITE]                all rows of the step of site 2, or SITE, whose elements are 0, 1, 2, ... in i32
 *     at NS                                      time of the records that follow; else 1000 and their number
 *     launch N                                   number of the next launch; else they rise by one
 *     drop SITE REASON N                         so many records of 1 row and 4 bytes were dropped
 *     heads N                                    records of `put` that follow have that many heads, as a second dimension
 *     dp RANK SIZE                               of the steps that follow
 *     tags TEXT                                  of the spans of the steps that follow
 *     flags N                                    of the steps that follow
 *     change MEMBERS                             a change before the next step, and these members of its JSON object, a comma first
 *     accept ID NUMBER N
 *     end ID REASON
 *
 * Sites: 0 `q` f32, dimension 1 divided over tp; 1 `o` f32, the sum over tp; 2 `h` i32 and 3 `head` f32 (a row a request), on
 * every rank; with `hidden`, and with `bidirectional`, which is also what the convention `attention` says, also 4 `token_ids`, 5 `resid_pre`, 6 `resid_final`, 7 `resid_mid`, scaled by 4,
 * 8 `k`, as `q`, 9 `q_rot`, 10 `k_rot` and 11 `resid_mid` again, scaled by 2. Element (row, column) of step S, the first being 0: TIMES * (((LAYER + 1) * 128 + S) * 64 + row) * 64 + column;
 * of `head` the row is that of the span. A last word `sum`, `dim`, `over`, `none`, `row` or `scale` gives `q` another meaning.
 */
#include "storage/writer/run.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SPANS  64
#define MOST_CACHED 256 /* token ids of a span */

struct writer {
    struct run *run;
    struct dmi_step step; /* ranks, and the rows of the last one */
    uint64_t n_steps, launch, time_ns;
    uint32_t n_spans;
    uint32_t n_heads; /* 0: no dimension of them */
    char tags[256];
};

/* The token ids after a word's '=', which it loses; NULL: it has none. */
static const int32_t *cached_ids(char *word, int32_t ids[MOST_CACHED])
{
    char *at = strchr(word, '=');
    if (!at)
        return NULL;
    *at = 0;
    for (size_t i = 0; at && i < MOST_CACHED; i++, at = strchr(at, ','))
        ids[i] = (int32_t)strtol(++at, NULL, 10);
    return ids;
}

static int put_step(struct writer *w, char *text)
{
    static struct dmi_span spans[MOST_SPANS];
    static char ids[MOST_SPANS][64];
    static int32_t tokens[MOST_SPANS][MOST_CACHED];
    unsigned long long number, position;
    int n = 0;
    w->n_spans = 0;
    if (sscanf(text, "step %llu %u%n", &number, &w->step.n_rows, &n) != 2)
        return -1;
    for (char *word = strtok(text + n, " \n"); word; word = strtok(NULL, " \n")) {
        if (w->n_spans == MOST_SPANS)
            return -1;
        struct dmi_span *s = &spans[w->n_spans];
        s->n_cached = 0;
        s->cached_ids = cached_ids(word, tokens[w->n_spans]);
        s->tags = *w->tags ? w->tags : NULL;
        if (sscanf(word, "%63[^:]:%u:%u:%llu:%u:%u:%u:%u", ids[w->n_spans], &s->first_row,
                   &s->n_tokens, &position, &s->phase, &s->n_prompt, &s->flags, &s->n_cached) < 7)
            return -1;
        s->request_id = ids[w->n_spans++];
        s->first_position = (int64_t)position;
    }
    w->step.step = number;
    w->step.n_spans = w->n_spans;
    w->step.spans = spans;
    return run_step(w->run, w->n_steps++, &w->step);
}

/* @record: its site, layer, dtype, dimensions and data */
static int append(struct writer *w, struct run_record record)
{
    record.occurrence = record.layer < 0 ? 0 : (uint32_t)record.layer;
    record.launch = ++w->launch;
    record.forward = record.step = w->n_steps - 1;
    record.time_ns = w->time_ns ? w->time_ns : 1000 + w->launch;
    record.n_dims = record.dims[2] ? 3 : 2;
    record.n_bytes = (uint64_t)record.dims[0] * record.dims[1] *
                     (record.dims[2] ? record.dims[2] : 1) * dmi_dtype_bytes(record.dtype);
    struct dmi_site_counters *c = &run_counters(w->run)->sites[record.site];
    struct dmi_tally *tallies[] = { &c->expected, &c->captured };
    for (int i = 0; i < 2; i++) {
        tallies[i]->records++;
        tallies[i]->rows += record.dims[0];
        tallies[i]->bytes += record.n_bytes;
    }
    return run_append(w->run, &record, 1);
}

static uint32_t rows_of(const struct writer *w, unsigned site)
{
    return site == 3 ? w->n_spans : w->step.n_rows;
}

static int put_record(struct writer *w, const char *text)
{
    static int32_t whole[MOST_SPANS * 64];
    static float real[MOST_SPANS * 64];
    unsigned site, column, n_columns, times;
    int layer;
    if (sscanf(text, "rec %u %d %u %u %u", &site, &layer, &column, &n_columns, &times) != 5)
        return -1;
    uint32_t n_rows = rows_of(w, site);
    if (n_rows > MOST_SPANS || n_columns > 64)
        return -1;
    for (uint32_t i = 0; i < n_rows * n_columns; i++) {
        uint64_t row = i / n_columns, step = w->n_steps - 1;
        uint64_t v =
            (((uint64_t)(layer + 1) * 128 + step) * 64 + row) * 64 + column + i % n_columns;
        whole[i] = (int32_t)(times * v);
        real[i] = (float)(times * v);
    }
    return append(w, (struct run_record){ .site = site,
                                          .layer = layer,
                                          .dtype = site == 2 ? DMI_DTYPE_I32 : DMI_DTYPE_F32,
                                          .dims = { n_rows, n_columns },
                                          .data = site == 2 ? (const void *)whole : real });
}

static void set_value(uint8_t *to, uint32_t dtype, const char *word)
{
    double f64 = strtod(word, NULL);
    float f32 = (float)f64;
    long long whole = strtoll(word, NULL, 10);
    if (dtype == DMI_DTYPE_F64)
        memcpy(to, &f64, 8);
    else if (dtype == DMI_DTYPE_F32)
        memcpy(to, &f32, 4);
    else if (dtype == DMI_DTYPE_BF16)
        memcpy(to, (uint8_t *)&f32 + 2, 2);
    else
        memcpy(to, &whole, dmi_dtype_bytes(dtype));
}

static int put_values(struct writer *w, char *text)
{
    static uint8_t data[MOST_SPANS * 64 * 8];
    unsigned site, n_columns;
    char type[16];
    int layer, n = 0;
    if (sscanf(text, "put %u %d %u %15s%n", &site, &layer, &n_columns, type, &n) != 4)
        return -1;
    uint32_t n_rows = rows_of(w, site), dtype = dmi_dtype_from_name(type);
    if (n_rows > MOST_SPANS || n_columns > 64)
        return -1;
    char *word = strtok(text + n, " \n");
    for (uint32_t i = 0; i < n_rows * n_columns; i++, word = strtok(NULL, " \n"))
        set_value(data + i * dmi_dtype_bytes(dtype), dtype, word ? word : "0");
    struct run_record record = {
        .site = site, .layer = layer, .dtype = dtype, .dims = { n_rows, n_columns }, .data = data
    };
    if (w->n_heads) {
        record.dims[1] = w->n_heads;
        record.dims[2] = n_columns / w->n_heads;
    }
    return append(w, record);
}

static int put_wide(struct writer *w, int layer, unsigned n_columns, unsigned site)
{
    uint32_t n_rows = rows_of(w, 2);
    int32_t *values = calloc((size_t)n_rows * n_columns + 1, sizeof *values);
    if (!values)
        return -1;
    for (uint32_t i = 0; i < n_rows * n_columns; i++)
        values[i] = (int32_t)i;
    int r = append(w, (struct run_record){ .site = site,
                                           .layer = layer,
                                           .dtype = DMI_DTYPE_I32,
                                           .dims = { n_rows, n_columns },
                                           .data = values });
    free(values);
    return r;
}

static int put_drop(struct writer *w, uint64_t site, uint64_t reason, unsigned n)
{
    if (site > 3 || reason >= DMI_DROP_ROOM)
        return -1;
    struct dmi_site_counters *c = &run_counters(w->run)->sites[site];
    struct dmi_tally *tallies[] = { &c->expected, &c->dropped[reason] };
    for (int i = 0; i < 2; i++) {
        tallies[i]->records += n;
        tallies[i]->rows += n;
        tallies[i]->bytes += 4 * n;
    }
    return 0;
}

static int put_line(struct writer *w, char *text)
{
    char id[64];
    unsigned long long number, reason;
    unsigned n, site = 2;
    int layer;
    if (!strncmp(text, "step ", 5))
        return put_step(w, text);
    if (!strncmp(text, "rec ", 4))
        return put_record(w, text);
    if (!strncmp(text, "put ", 4))
        return put_values(w, text);
    if (sscanf(text, "wide %d %u %u", &layer, &n, &site) >= 2)
        return put_wide(w, layer, n, site);
    if (sscanf(text, "drop %llu %llu %u", &number, &reason, &n) == 3)
        return put_drop(w, number, reason, n);
    if (sscanf(text, "at %llu", &number) == 1) {
        w->time_ns = number;
        return 0;
    }
    if (sscanf(text, "heads %u", &w->n_heads) == 1)
        return 0;
    if (sscanf(text, "dp %d %d", &w->step.dp_rank, &w->step.dp_size) == 2)
        return 0;
    if (sscanf(text, "flags %u", &w->step.flags) == 1)
        return 0;
    if (!strncmp(text, "change ", 7)) {
        text[strcspn(text, "\n")] = 0;
        return run_change(
            w->run, &(struct run_change){ .step = w->n_steps, .what = "edits", .more = text + 7 });
    }
    if (sscanf(text, "tags %255[^\n]", w->tags) == 1)
        return 0;
    if (sscanf(text, "launch %llu", &number) == 1) {
        w->launch = number - 1;
        return 0;
    }
    if (sscanf(text, "accept %63s %llu %u", id, &number, &n) == 3)
        return run_accept(w->run, id, number, n);
    if (sscanf(text, "end %63s %u", id, &n) == 2)
        return run_request_end(w->run, id, n);
    return -1;
}

/* Another meaning of `q` than other ranks have. */
static void contradict(struct dmi_site *q, const char *word)
{
    if (!strcmp(word, "sum"))
        q->shard = DMI_SHARD_SUM;
    else if (!strcmp(word, "none"))
        q->shard = DMI_SHARD_NONE;
    else if (!strcmp(word, "dim"))
        q->shard_dim = 2;
    else if (!strcmp(word, "over"))
        q->shard_axis = DMI_AXIS_DP;
    else if (!strcmp(word, "row"))
        q->row = DMI_ROW_REQUEST;
    else if (!strcmp(word, "scale"))
        q->scale = 2;
}

int main(int argc, char **argv)
{
    static struct dmi_site sites[] = {
        { .name = "q",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 1,
          .expect = -1,
          .has_layer = true,
          .shard = DMI_SHARD_DIM,
          .shard_dim = 1,
          .shard_axis = DMI_AXIS_TP },
        { .name = "o",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 1,
          .expect = -1,
          .has_layer = true,
          .shard = DMI_SHARD_SUM,
          .shard_axis = DMI_AXIS_TP },
        { .name = "h",
          .kernel = "k",
          .dtype = DMI_DTYPE_I32,
          .scale = 1,
          .expect = -1,
          .has_layer = true },
        { .name = "head",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 1,
          .expect = -1,
          .row = DMI_ROW_REQUEST },
        { .name = "token_ids", .kernel = "k", .dtype = DMI_DTYPE_I32, .expect = -1 },
        { .name = "resid_pre",
          .kernel = "k",
          .dtype = DMI_DTYPE_BF16,
          .scale = 1,
          .expect = -1,
          .has_layer = true },
        { .name = "resid_final", .kernel = "k", .dtype = DMI_DTYPE_BF16, .scale = 1, .expect = -1 },
        { .name = "resid_mid",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 4,
          .expect = -1,
          .has_layer = true },
        { .name = "k",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 1,
          .expect = -1,
          .has_layer = true,
          .shard = DMI_SHARD_DIM,
          .shard_dim = 1,
          .shard_axis = DMI_AXIS_TP },
        { .name = "q_rot", .kernel = "k", .dtype = DMI_DTYPE_F32, .expect = -1, .has_layer = true },
        { .name = "k_rot", .kernel = "k", .dtype = DMI_DTYPE_F32, .expect = -1, .has_layer = true },
        { .name = "resid_mid",
          .kernel = "k",
          .dtype = DMI_DTYPE_F32,
          .scale = 2,
          .expect = -1,
          .has_layer = true },
    };
    static const struct run_text attention = { "attention", "bidirectional" };
    const bool later = argc == 8 && !strcmp(argv[7], "bidirectional");
    const uint32_t n_hidden = later || (argc == 8 && !strcmp(argv[7], "hidden")) ? 0 : 8;
    if (argc == 8)
        contradict(&sites[0], argv[7]);
    if (argc != 7 && argc != 8)
        return 2;
    struct writer w = { .step = { .size = sizeof w.step,
                                  .version = 1,
                                  .span_size = sizeof(struct dmi_span),
                                  .tp_rank = atoi(argv[3]),
                                  .tp_size = atoi(argv[4]),
                                  .pp_rank = atoi(argv[5]),
                                  .pp_size = atoi(argv[6]) } };
    struct run_options options = { .out_dir = argv[1],
                                   .job = argv[2],
                                   .sites = sites,
                                   .n_sites = sizeof sites / sizeof sites[0] - n_hidden,
                                   .spec_text = "",
                                   .conventions = &attention,
                                   .n_conventions = later,
                                   .segment_bytes = argc == 8 && strtoull(argv[7], NULL, 10)
                                                        ? strtoull(argv[7], NULL, 10)
                                                        : 20000 };
    struct err err = { 0 };
    static char line[1 << 16];
    if (run_open(&err, &options, &w.run)) {
        fprintf(stderr, "make_schedule: %s\n", err.msg);
        return 1;
    }
    int r = 0;
    while (!r && fgets(line, sizeof line, stdin)) {
        r = put_line(&w, line);
        if (r)
            fprintf(stderr, "make_schedule: %d: %s", r, line);
    }
    return run_close(w.run) || r;
}
