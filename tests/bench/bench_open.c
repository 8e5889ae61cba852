/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs to look at a part of a run, beside reading all of it, in one process on warm files:
 *
 *     bench_open FOLDER [MEGABYTES]
 *
 * Two runs of that size (1000) of noise that does not shrink are written into FOLDER and removed: records of
 * 256 KiB, 16 a chunk, as a drain writes them, and records of 2 KiB, 512 a chunk; 8 sites, 30 layers, one request
 * of 64 tokens a step. Bytes are those that the reader read. Prints; asserts only that records are found.
 */
#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/reader/reader_private.h"
#include "storage/writer/run.h"

#include <dmi/dtype.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITES  8u
#define LAYERS 30u
#define ROWS   64u
#define ROUNDS 3

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_open: %s: %s\n", what, why);
    exit(1);
}

/* ------------------------------------------------------------------------- writing */

struct batch {
    struct run *run;
    const uint8_t *noise;
    size_t n_noise, n_record;
    struct run_record records[512];
    size_t n, most;
    uint64_t launch, step;
};

static void flush(struct batch *b)
{
    if (b->n && run_append(b->run, b->records, b->n))
        fail("run_append", "failed");
    b->n = 0;
}

static void put(struct batch *b, uint32_t site, int32_t layer)
{
    uint64_t offset = (b->launch * 7919 * 64) % (b->n_noise - b->n_record);
    b->records[b->n++] = (struct run_record){
        .site = site,
        .layer = layer,
        .occurrence = (uint32_t)layer,
        .dtype = DMI_DTYPE_U8,
        .launch = b->launch++,
        .forward = b->step,
        .step = b->step,
        .n_dims = 2,
        .dims = { ROWS, (uint32_t)(b->n_record / ROWS) },
        .data = b->noise + offset,
        .n_bytes = b->n_record,
    };
    if (b->n == b->most)
        flush(b);
}

static char *write_run(const char *out, uint64_t n_bytes, size_t n_record, size_t per_chunk)
{
    struct dmi_site sites[SITES];
    static char names[SITES][8];
    for (uint32_t i = 0; i < SITES; i++) {
        snprintf(names[i], sizeof names[i], "site%u", i);
        sites[i] = (struct dmi_site){
            .name = names[i], .dtype = DMI_DTYPE_U8, .scale = 1, .expect = LAYERS, .has_layer = true
        };
    }
    struct run_options options = { .out_dir = out,
                                   .sites = sites,
                                   .n_sites = SITES,
                                   .segment_bytes = 256u << 20,
                                   .durability = RUN_DURABILITY_NONE };
    struct batch b = { .n_noise = 64u << 20, .n_record = n_record, .most = per_chunk, .launch = 1 };
    _cleanup_(freep) uint8_t *noise = malloc(b.n_noise);
    struct err err = { 0 };
    if (!noise || run_open(&err, &options, &b.run))
        fail("run_open", noise ? err.msg : "no memory");
    for (uint64_t i = 0, v = 1; i + 8 <= b.n_noise; i += 8) {
        v = v * 6364136223846793005u + 1442695040888963407u;
        uint64_t mixed = v ^ v >> 29;
        memcpy(noise + i, &mixed, 8);
    }
    b.noise = noise;
    for (uint64_t written = 0; written < n_bytes; b.step++) {
        const struct dmi_span span = { .request_id = "r",
                                       .first_position = (int64_t)(b.step * ROWS),
                                       .n_tokens = ROWS };
        const struct dmi_step step = { .size = sizeof step,
                                       .version = DMI_STEP_VERSION,
                                       .step = b.step,
                                       .n_rows = ROWS,
                                       .n_spans = 1,
                                       .span_size = sizeof span,
                                       .spans = &span };
        if (run_step(b.run, b.step, &step))
            fail("run_step", "failed");
        for (int32_t layer = 0; layer < (int32_t)LAYERS; layer++)
            for (uint32_t site = 0; site < SITES; site++, written += n_record)
                put(&b, site, layer);
        flush(&b);
    }
    char *path = strdup(run_path(b.run));
    if (run_close(b.run) || !path)
        fail("run_close", "failed");
    return path;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

/* ------------------------------------------------------------------------- reading */

static size_t decode_selected(struct reader *reader)
{
    static uint8_t data[256 << 10];
    struct err err = { 0 };
    size_t n = reader_n_records(reader);
    for (size_t i = 0; i < n; i++)
        if (reader_decode(&err, reader, reader_record(reader, i), data))
            fail("reader_decode", err.msg);
    return n;
}

struct way {
    const char *name;
    const struct reader_query *query; /* with select */
    bool walk, select, decode;
    double seconds; /* the best */
    uint64_t n_read;
    size_t n_records;
};

static void measure(const char *path, struct way *w)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    uint64_t start = clock_mono_ns();
    if (w->walk ? reader_open_distrusting(&err, path, &reader)
                : reader_open_index(&err, path, &reader))
        fail(path, err.msg);
    if (w->select && reader_select(&err, reader, w->query))
        fail(path, err.msg);
    if (w->decode && !decode_selected(reader))
        fail(path, "no records");
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    w->seconds = w->seconds && w->seconds < seconds ? w->seconds : seconds;
    w->n_read = reader_run(reader)->n_read;
    w->n_records = reader_n_records(reader);
}

static void compare(const char *out, uint64_t n_bytes, size_t n_record, size_t per_chunk)
{
    const struct reader_query site = { .site = "site3" },
                              layer = { .site = "site3", .by_layer = true, .layer = 7 },
                              token = { .site = "site3",
                                        .by_layer = true,
                                        .layer = 7,
                                        .request = "r",
                                        .n_request = 1,
                                        .first_position = 10,
                                        .end_position = 11 };
    struct way ways[] = {
        { "all of it: every chunk walked, every record decoded", NULL, true, true, true, 0, 0, 0 },
        { "every chunk walked, nothing decoded", NULL, true, false, false, 0, 0, 0 },
        { "the index alone", NULL, false, false, false, 0, 0, 0 },
        { "by the index: every record, nothing decoded", NULL, false, true, false, 0, 0, 0 },
        { "by the index: one site of 8, decoded", &site, false, true, true, 0, 0, 0 },
        { "by the index: one layer of one site, decoded", &layer, false, true, true, 0, 0, 0 },
        { "by the index: one token of those, decoded", &token, false, true, true, 0, 0, 0 },
    };
    _cleanup_(freep) char *path = write_run(out, n_bytes, n_record, per_chunk);
    const size_t n = sizeof ways / sizeof ways[0];
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < n; i++)
            measure(path, &ways[i]);
    printf("%.0f MB of records of %zu bytes, %zu a chunk\n", (double)n_bytes / 1e6, n_record,
           per_chunk);
    for (size_t i = 0; i < n; i++)
        printf("  %-52s %9zu records %9.3f MB (1/%.0f) %9.2f ms (1/%.0f)\n", ways[i].name,
               ways[i].n_records, (double)ways[i].n_read / 1e6,
               (double)ways[0].n_read / (double)ways[i].n_read, ways[i].seconds * 1e3,
               ways[0].seconds / ways[i].seconds);
    fflush(stdout);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        fail("usage", "bench_open FOLDER [MEGABYTES]");
    uint64_t n_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1000) * 1000000;
    compare(argv[1], n_bytes, 256 << 10, 16);
    compare(argv[1], n_bytes, 2 << 10, 512);
    return 0;
}
