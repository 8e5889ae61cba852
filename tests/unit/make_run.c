/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a small run whose every value follows from a formula, for tests of programs that read runs:
 *
 *     make_run OUT [anonymous] [killed] [two-widths]
 *
 * Four forwards. Requests "france" (tokens 0-2, 3, 4, 5) and "../../x\n" (tokens 7-8 prefilled after a
 * cached prefix, then 9, 10), in the order of test_dmi_dump.py's table, and padding in the first. Value i
 * of a row is request + position / 16 + layer / 128 + i / 1024, times the site's scale, request being 1 or
 * 2; f32 but for "h", which is bf16, and "ids", i32 100 * request + position.
 */
#include "storage/writer/run.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct token {
    int request; /* 0: padding */
    int position;
};

static const struct {
    uint32_t n_tokens, n_spans;
    struct token tokens[6];
    struct dmi_span spans[3];
} forwards[] = {
    { 6,
      3,
      { { 1, 0 }, { 1, 1 }, { 1, 2 }, { 2, 7 }, { 2, 8 }, { 0, 0 } },
      { { .request_id = "france", .n_tokens = 3, .phase = DMI_PHASE_PREFILL },
        { .request_id = "../../x\n",
          .first_position = 7,
          .first_row = 3,
          .n_tokens = 2,
          .n_cached = 7,
          .phase = DMI_PHASE_PREFILL },
        { .request_id = "pad", .first_row = 5, .n_tokens = 1, .flags = DMI_SPAN_PADDING } } },
    { 2,
      2,
      { { 2, 9 }, { 1, 3 } },
      { { .request_id = "../../x\n",
          .first_position = 9,
          .n_tokens = 1,
          .phase = DMI_PHASE_DECODE },
        { .request_id = "france", .first_position = 3, .first_row = 1, .n_tokens = 1 } } },
    { 2,
      2,
      { { 1, 4 }, { 2, 10 } },
      { { .request_id = "france", .first_position = 4, .n_tokens = 1 },
        { .request_id = "../../x\n",
          .first_position = 10,
          .first_row = 1,
          .n_tokens = 1,
          .flags = DMI_SPAN_LAST } } },
    { 1,
      1,
      { { 1, 5 } },
      { { .request_id = "france", .first_position = 5, .n_tokens = 1, .flags = DMI_SPAN_LAST } } },
};

enum { Q_PREFILL, Q_DECODE, Q_LAYER_1, H, IDS, LOGITS, BIAS, SITES };

static const struct dmi_site sites[SITES] = {
    [Q_PREFILL] = { .name = "q",
                    .kernel = "p.*",
                    .kind = "prefill",
                    .dtype = DMI_DTYPE_F32,
                    .scale = 1,
                    .expect = 2,
                    .has_layer = 1 },
    [Q_DECODE] = { .name = "q",
                   .kernel = "d.*",
                   .kind = "decode",
                   .dtype = DMI_DTYPE_F32,
                   .scale = 1,
                   .expect = 2,
                   .has_layer = 1 },
    [Q_LAYER_1] = { .name = "q",
                    .kernel = "second",
                    .dtype = DMI_DTYPE_F32,
                    .scale = 1,
                    .expect = 1,
                    .has_layer = 1 },
    [H] = { .name = "blocks.{layer}.h",
            .kernel = "h",
            .dtype = DMI_DTYPE_BF16,
            .scale = 1,
            .expect = 2,
            .has_layer = 1,
            .note = "after the norm" },
    [IDS] = { .name = "ids", .kernel = "i", .dtype = DMI_DTYPE_I32, .scale = 1, .expect = 1 },
    [LOGITS] = { .name = "logits",
                 .kernel = "l",
                 .dtype = DMI_DTYPE_F32,
                 .row = 1,
                 .scale = 4,
                 .expect = 1 },
    [BIAS] = { .name = "bias",
               .kernel = "b",
               .dtype = DMI_DTYPE_F32,
               .row = 2,
               .scale = 1,
               .expect = 1 },
};

struct writer {
    enum codec_rung rung;
    struct run *run;
    uint64_t launch, forward;
    int anonymous, kill;
};

static float value(struct token t, int layer, uint32_t i)
{
    return (float)t.request + (float)t.position / 16 + (float)(layer < 0 ? 0 : layer) / 128 +
           (float)i / 1024;
}

static int put(struct writer *w, uint32_t site, int32_t layer, const struct token *rows,
               uint32_t n_rows, uint32_t a, uint32_t b)
{
    static uint8_t data[65536];
    uint32_t width = a * b, element = dmi_dtype_bytes(sites[site].dtype);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < width; i++) {
            float f = value(rows[r], layer, i) * (float)sites[site].scale;
            int32_t id = 100 * rows[r].request + rows[r].position;
            uint8_t *to = data + (r * width + i) * element;
            if (site == H)
                memcpy(to, (uint8_t *)&f + 2, 2);
            else if (site == IDS)
                memcpy(to, &id, 4);
            else
                memcpy(to, &f, 4);
        }
    struct run_record record = {
        .site = site,
        .layer = layer,
        .occurrence = layer < 0 ? 0 : (uint32_t)layer,
        .dtype = sites[site].dtype,
        .launch = w->launch++,
        .forward = w->forward,
        .step = w->anonymous ? UINT64_MAX : w->forward,
        .time_ns = 1000,
        .n_dims = b == 1 ? 2 : 3,
        .dims = { n_rows, a, b == 1 ? 0 : b },
        .data = data,
        .n_bytes = n_rows * width * element,
    };
    struct dmi_site_counters *c = &run_counters(w->run)->sites[site];
    struct dmi_tally more = { 1, n_rows, record.n_bytes };
    c->expected.records += more.records, c->expected.rows += more.rows;
    c->expected.bytes += more.bytes;
    struct chunk *chunk;
    int r = run_encode(w->run, &record, 1, w->rung, &chunk);
    if (!r)
        r = run_append_chunk(w->run, chunk);
    c->captured.records += more.records, c->captured.rows += more.rows;
    c->captured.bytes += more.bytes;
    c->launches++;
    return r;
}

static int put_forward(struct writer *w)
{
    const struct dmi_span *spans = forwards[w->forward].spans;
    const struct token *tokens = forwards[w->forward].tokens;
    uint32_t n = forwards[w->forward].n_tokens, n_last = 0;
    struct token last[3];
    for (uint32_t s = 0; s < forwards[w->forward].n_spans; s++)
        if (!(spans[s].flags & DMI_SPAN_PADDING))
            last[n_last++] = tokens[spans[s].first_row + spans[s].n_tokens - 1];
    int r = 0;
    for (int32_t layer = 0; layer < 2; layer++) {
        r |= put(w, layer ? Q_LAYER_1 : w->forward ? Q_DECODE : Q_PREFILL, layer, tokens, n, 2, 8);
        r |= put(w, H, layer, tokens, n, 8, 1);
    }
    r |= put(w, IDS, RUN_NO_LAYER, tokens, n, 1, 1);
    r |= put(w, LOGITS, RUN_NO_LAYER, last, n_last, 32, 1);
    r |= put(w, BIAS, RUN_NO_LAYER, (struct token[]){ { 3, 0 } }, 1, 8, 1);
    run_counters(w->run)->forwards++;
    return r;
}

int main(int argc, char **argv)
{
    struct writer w = { .launch = 2 };
    int two_widths = 0;
    for (int i = 2; i < argc; i++) {
        w.anonymous |= !strcmp(argv[i], "anonymous");
        w.kill |= !strcmp(argv[i], "killed");
        two_widths |= !strcmp(argv[i], "two-widths");
        if (!strcmp(argv[i], "packed"))
            w.rung = CODEC_PACKED;
        if (!strcmp(argv[i], "stored"))
            w.rung = CODEC_STORED;
    }
    const struct run_text conventions[] = { { "layer_base", "0" } },
                          absent[] = { { "v", "fused away" } };
    struct run_options options = { .out_dir = argc > 1 ? argv[1] : "out",
                                   .model = "formula",
                                   .sites = sites,
                                   .n_sites = SITES,
                                   .conventions = conventions,
                                   .n_conventions = 1,
                                   .absent = absent,
                                   .n_absent = 1,
                                   .spec_text = "",
                                   .segment_bytes = 8192 };
    struct err err = { 0 };
    if (run_open(&err, &options, &w.run)) {
        fprintf(stderr, "make_run: %s\n", err.msg);
        return 1;
    }
    puts(run_path(w.run));
    int r = 0;
    for (; w.forward < sizeof forwards / sizeof forwards[0]; w.forward++) {
        const struct dmi_step step = { .size = sizeof step,
                                       .version = 1,
                                       .step = 40 + w.forward,
                                       .n_rows = forwards[w.forward].n_tokens,
                                       .n_spans = forwards[w.forward].n_spans,
                                       .span_size = sizeof(struct dmi_span),
                                       .spans = forwards[w.forward].spans };
        if (!w.anonymous)
            r |= run_step(w.run, w.forward, &step);
        r |= put_forward(&w);
    }
    if (two_widths)
        r |= put(&w, BIAS, RUN_NO_LAYER, (struct token[]){ { 3, 0 } }, 1, 4, 1);
    if (w.kill) {
        run_counters(w.run)->sites[H].expected.records += 3; /* in flight when it dies */
        run_counters(w.run)->sites[H].expected.rows += 3;
        run_counters(w.run)->sites[H].expected.bytes += 48;
        fflush(stdout);
        _exit(r != 0);
    }
    return run_close(w.run) || r;
}
