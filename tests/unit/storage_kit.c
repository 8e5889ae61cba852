/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/storage_kit.h"

#include "core/cleanup.h"

#include <dmi/dtype.h>

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *kit_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/dmi-storage-XXXXXX", tmp ? tmp : "/tmp"), 0);
    ck_assert_ptr_nonnull(mkdtemp(path));
    return path;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

void kit_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct run *kit_open_with(const char *out, const struct run_options *more)
{
    struct dmi_site sites[DMI_DTYPE_COUNT];
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++)
        sites[d - 1] = (struct dmi_site){ .name = dmi_dtype_info(d)->name,
                                          .kernel = "k_.*\"\n",
                                          .dtype = d,
                                          .scale = 1,
                                          .expect = -1,
                                          .has_layer = 1 };
    sites[DMI_DTYPE_COUNT - 1] = (struct dmi_site){ .name = "logits",
                                                    .kernel = "z",
                                                    .kind = "decode",
                                                    .note = "times 1e12",
                                                    .dtype = DMI_DTYPE_F32,
                                                    .row = 1,
                                                    .scale = 1e12,
                                                    .expect = 1 };
    const struct run_text conventions[] = { { "layer_base", "0" } };
    const struct run_text absent[] = { { "mlp_out", "fused away" } };
    struct run_options options = {
        .out_dir = out,
        .spec_path = "kit.yaml",
        .spec_text = "version: 1\n",
        .n_spec_text = 11,
        .job = "kit-job",
        .model = "kit \"quoted\" \xff",
        .library_version = "0",
        .sites = sites,
        .n_sites = DMI_DTYPE_COUNT,
        .conventions = conventions,
        .n_conventions = 1,
        .absent = absent,
        .n_absent = 1,
        .segment_bytes = more->segment_bytes,
        .segment_ns = more->segment_ns,
        .keep_bytes = more->keep_bytes,
        .keep_ns = more->keep_ns,
        .durability = more->durability,
        .sync_ns = more->sync_ns,
        .live = more->live,
    };
    struct err err = { 0 };
    struct run *run = NULL;
    int r = run_open(&err, &options, &run);
    ck_assert_msg(r == 0, "%s", err.msg);
    return run;
}

uint64_t kit_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Dull;
}

void kit_fill(void *data, uint32_t dtype, size_t n_elements, uint64_t seed)
{
    uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
    uint32_t n = dmi_dtype_bytes(dtype);
    for (size_t i = 0; i < n_elements; i++) {
        uint64_t v = kit_random(&state);
        float f = (float)((double)(int32_t)v / 2147483648.0 * (double)(1u << (v >> 60)));
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (dtype == DMI_DTYPE_F32)
            v = bits;
        else if (dtype == DMI_DTYPE_BF16)
            v = bits >> 16;
        memcpy((char *)data + i * n, &v, n);
    }
}

static void fill_records(struct run_record records[2], uint64_t number, uint32_t width, void *f32,
                         void *logits)
{
    kit_fill(f32, DMI_DTYPE_F32, 4 * width, 2 * number);
    kit_fill(logits, DMI_DTYPE_F32, 16, 2 * number + 1);
    records[0] = (struct run_record){ .site = 0,
                                      .layer = (int32_t)(number % 3),
                                      .occurrence = (uint32_t)(number % 3),
                                      .dtype = DMI_DTYPE_F32,
                                      .launch = 2 + 2 * number,
                                      .forward = number,
                                      .step = number,
                                      .time_ns = 1000 + number,
                                      .n_dims = 2,
                                      .dims = { 4, width },
                                      .data = f32,
                                      .n_bytes = 16u * width };
    records[1] = records[0];
    records[1].site = DMI_DTYPE_COUNT - 1;
    records[1].layer = RUN_NO_LAYER;
    records[1].launch++;
    records[1].dims[0] = 2, records[1].dims[1] = 8;
    records[1].data = logits;
    records[1].n_bytes = 64;
}

struct run *kit_open(const char *out, uint64_t segment_bytes)
{
    const struct run_options more = { .segment_bytes = segment_bytes };
    return kit_open_with(out, &more);
}

int kit_step(struct run *run, uint64_t number)
{
    const struct dmi_span spans[] = {
        { .request_id = "../../x\n",
          .tags = "{\"user\": 1}",
          .first_position = (int64_t)number * 3,
          .n_tokens = 3,
          .n_prompt = 3,
          .phase = DMI_PHASE_PREFILL },
        { .request_id = "b", .first_position = (int64_t)number, .first_row = 3, .n_tokens = 1 },
    };
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .step = 100 + number,
                                   .n_rows = 4,
                                   .n_spans = 2,
                                   .span_size = sizeof spans[0],
                                   .spans = spans,
                                   .tags = "t",
                                   .tp_size = 1 };
    return run_step(run, number, &step);
}

int kit_records(struct run *run, uint64_t number, uint32_t width)
{
    _cleanup_(freep) char *f32 = malloc(16u * width);
    char logits[64];
    struct run_record records[2];
    fill_records(records, number, width, f32, logits);
    struct dmi_counters *c = run_counters(run);
    for (int i = 0; i < 2; i++) {
        struct dmi_tally *t = &c->sites[records[i].site].expected;
        t->records++, t->rows += records[i].dims[0], t->bytes += records[i].n_bytes;
    }
    int r = run_append(run, records, 2);
    for (int i = 0; i < 2; i++) {
        struct dmi_site_counters *s = &c->sites[records[i].site];
        struct dmi_tally *t = r ? &s->dropped[DMI_DROP_WRITE_FAILED] : &s->captured;
        t->records++, t->rows += records[i].dims[0], t->bytes += records[i].n_bytes;
    }
    return r;
}

int kit_forward(struct run *run, uint64_t number, uint32_t width)
{
    int r = kit_step(run, number);
    return r ? r : kit_records(run, number, width);
}

static const uint32_t special_kept[6] = { 11, 3, 4, 0, 7, 1 };

int kit_special(struct run *run, uint64_t step)
{
    uint16_t data[24];
    kit_fill(data, DMI_DTYPE_BF16, 24, 77);
    const struct dmi_span span = { .request_id = "c", .n_tokens = 12, .n_prompt = 40 };
    const struct dmi_step about = { .size = sizeof about,
                                    .version = 1,
                                    .step = 100 + step,
                                    .n_rows = 12,
                                    .n_spans = 1,
                                    .span_size = sizeof span,
                                    .spans = &span };
    struct run_record record = { .site = DMI_DTYPE_BF16 - 1,
                                 .dtype = DMI_DTYPE_BF16,
                                 .launch = 1000000,
                                 .forward = KIT_SPECIAL,
                                 .step = step,
                                 .n_dims = 3,
                                 .n_row_dims = 2,
                                 .dims = { 2, 3, 4 },
                                 .kept = special_kept,
                                 .data = data,
                                 .n_bytes = sizeof data };
    struct dmi_site_counters *c = &run_counters(run)->sites[record.site];
    const struct dmi_tally one = { 1, 6, sizeof data };
    c->expected = c->captured = one;
    int r = run_step(run, step, &about);
    return r ? r : run_append(run, &record, 1);
}

void kit_expect_special(struct reader *reader, size_t index)
{
    const struct reader_record *rec = reader_record(reader, index);
    uint16_t data[24], back[24];
    kit_fill(data, DMI_DTYPE_BF16, 24, 77);
    ck_assert_uint_eq(rec->at.n_row_dims, 2);
    ck_assert_uint_eq(rec->n_rows, 6);
    ck_assert_ptr_nonnull(rec->kept);
    ck_assert_mem_eq(rec->kept, special_kept, sizeof special_kept);
    ck_assert_ptr_nonnull(rec->step);
    ck_assert_uint_eq(rec->step->spans[0].n_prompt, 40);
    struct err err = { 0 };
    ck_assert_int_eq(reader_decode(&err, reader, rec, back), 0);
    ck_assert_mem_eq(back, data, sizeof data);
}

struct reader *kit_read(const char *path, bool verify)
{
    struct err err = { 0 };
    struct reader *reader = NULL;
    int r = reader_open(&err, path, &reader);
    ck_assert_msg(r == 0, "%s", err.msg);
    if (verify)
        ck_assert_int_eq(reader_verify(reader), 0);
    return reader;
}

size_t kit_damage(const struct reader *reader, const struct reader_finding **first)
{
    size_t n = 0;
    for (size_t i = 0; i < reader_n_findings(reader); i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        if (f->damage && n++ == 0 && first)
            *first = f;
    }
    return n;
}

bool kit_holds(struct reader *reader, uint32_t width)
{
    bool holds = true;
    for (size_t i = 0; holds && i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        if (rec->at.forward == KIT_SPECIAL)
            continue;
        _cleanup_(freep) char *is = malloc(rec->at.n_bytes);
        _cleanup_(freep) char *should = malloc(16u * width + 64);
        char logits[64];
        struct run_record records[2];
        fill_records(records, rec->at.forward, width, should, logits);
        const struct run_record *want = &records[rec->at.site != 0];
        struct err err = { 0 };
        holds = !reader_decode(&err, reader, rec, is) && rec->at.n_bytes == want->n_bytes &&
                rec->at.launch == want->launch && rec->at.layer == want->layer &&
                rec->at.time_ns == want->time_ns && !memcmp(is, want->data, want->n_bytes) &&
                rec->step && rec->step->entry->step == 100 + rec->at.forward;
    }
    return holds;
}

char *kit_run_folder(const char *out)
{
    DIR *dir = opendir(out);
    ck_assert_ptr_nonnull(dir);
    char *path = NULL;
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && !path)
            ck_assert_int_gt(asprintf(&path, "%s/%s", out, e->d_name), 0);
    closedir(dir);
    ck_assert_ptr_nonnull(path);
    return path;
}

uint8_t *kit_load(const char *folder, const char *name, size_t *n)
{
    _cleanup_(freep) char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    _cleanup_(fclosep) FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*n + 1);
    ck_assert_uint_eq(fread(data, 1, *n, f), *n);
    return data;
}

void kit_store(const char *folder, const char *name, const void *data, size_t n)
{
    _cleanup_(freep) char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    /* cut at the end, not before: ext4 flushes a file that was emptied and rewritten */
    _cleanup_(closep) int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)n), 0);
    ck_assert_int_eq(write(fd, data, n), (ssize_t)n);
}
