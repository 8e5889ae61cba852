/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a run of activations for stats.py:
 *
 *     bench_stats FOLDER TOKENS DTYPE ROWS
 *
 * One request in steps of ROWS tokens, a chunk each; four sites of 30 layers and 576 channels, f32 or bf16. Values are normal, channel 507 of
 * token 0 is huge. Prints the run's folder.
 */
#include "core/cleanup.h"
#include "storage/elements.h"
#include "storage/writer/run.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITES  4u
#define LAYERS 30
#define WIDTH  576u
#define NOISE  1048583u /* elements, before the first of the last record */

static void fail(const char *what)
{
    fprintf(stderr, "bench_stats: %s failed\n", what);
    exit(1);
}

/* Elements of the type, normal in each. */
static uint8_t *make_noise(uint32_t dtype, size_t n)
{
    uint8_t *noise = malloc(n * dmi_dtype_bytes(dtype));
    unsigned short state[3] = { 1, 2, 3 };
    for (size_t i = 0; noise && i < n; i++) {
        union elements_sum v = { .real = -6 };
        for (int k = 0; k < 12; k++)
            v.real += erand48(state);
        elements_from_sums(dtype, &v, 1, noise + i * dmi_dtype_bytes(dtype));
    }
    return noise;
}

struct batch {
    struct run *run;
    const uint8_t *noise;
    uint8_t *first; /* a record with the huge value */
    uint32_t dtype, size, n_rows;
    size_t n_record; /* elements */
    uint64_t launch, step;
    struct run_record records[SITES * LAYERS];
};

static const void *data_of(const struct batch *b)
{
    const uint8_t *at = b->noise + b->launch * 7919 % NOISE * b->size;
    union elements_sum huge = { .real = 23338 };
    if (b->step)
        return at;
    memcpy(b->first, b->noise, b->n_record * b->size);
    elements_from_sums(b->dtype, &huge, 1, b->first + (size_t)507 * b->size);
    return b->first;
}

static void append_step(struct batch *b)
{
    size_t n = 0;
    for (int32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t site = 0; site < SITES; site++) {
            b->records[n] = (struct run_record){ .site = site,
                                                 .layer = layer,
                                                 .occurrence = (uint32_t)layer,
                                                 .dtype = b->dtype,
                                                 .launch = ++b->launch,
                                                 .forward = b->step,
                                                 .step = b->step,
                                                 .n_dims = 2,
                                                 .dims = { b->n_rows, WIDTH },
                                                 .data = data_of(b),
                                                 .n_bytes = b->n_record * b->size };
            n++;
        }
    if (run_append(b->run, b->records, n))
        fail("run_append");
    b->step++;
}

static void say_step(struct batch *b)
{
    const struct dmi_span span = { .request_id = "r",
                                   .first_position = (int64_t)(b->step * b->n_rows),
                                   .n_tokens = b->n_rows };
    const struct dmi_step step = { .size = sizeof step,
                                   .version = DMI_STEP_VERSION,
                                   .step = b->step,
                                   .n_rows = b->n_rows,
                                   .n_spans = 1,
                                   .span_size = sizeof span,
                                   .spans = &span };
    if (run_step(b->run, b->step, &step))
        fail("run_step");
}

int main(int argc, char **argv)
{
    static const char *const names[SITES] = { "resid_pre", "resid_mid", "attn_out", "mlp_out" };
    struct dmi_site sites[SITES];
    struct batch b = { .dtype = argc == 5 ? dmi_dtype_from_name(argv[3]) : DMI_DTYPE_NONE };
    struct err err = { 0 };
    if (b.dtype == DMI_DTYPE_NONE)
        fail("usage: bench_stats FOLDER TOKENS DTYPE ROWS");
    b.size = dmi_dtype_bytes(b.dtype);
    b.n_rows = (uint32_t)strtoul(argv[4], NULL, 10);
    b.n_record = (size_t)b.n_rows * WIDTH;
    for (uint32_t i = 0; i < SITES; i++)
        sites[i] = (struct dmi_site){
            .name = names[i], .dtype = b.dtype, .scale = 1, .expect = LAYERS, .has_layer = true
        };
    const struct run_options options = { .out_dir = argv[1],
                                         .sites = sites,
                                         .n_sites = SITES,
                                         .segment_bytes = 256u << 20,
                                         .durability = RUN_DURABILITY_NONE };
    _cleanup_(freep) uint8_t *noise = make_noise(b.dtype, NOISE + b.n_record);
    b.noise = noise;
    _cleanup_(freep) uint8_t *first = b.first = malloc(b.n_record * b.size);
    if (!noise || !first || run_open(&err, &options, &b.run))
        fail("run_open");
    for (uint64_t n = strtoull(argv[2], NULL, 10); b.step * b.n_rows < n;) {
        say_step(&b);
        append_step(&b);
    }
    printf("%s\n", run_path(b.run));
    return run_close(b.run) ? 1 : 0;
}
