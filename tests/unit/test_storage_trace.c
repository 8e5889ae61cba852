/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When steps ran, and marks, from the writer to the reader. `test_storage_trace --write DIR` made these files of
 * tests/golden/v2 once; they are never edited:
 *
 *     trace/               a run of one step with records, times of three steps and all kinds of marks
 *     trace-steps/         the same with entries of 136 bytes, which have the engine's step; by `--write-steps DIR` of 2026-11-29
 *     trace-waits/         the same with entries of 144 bytes, which have the end of the last wait; by `--write-steps DIR`
 *     ranges/              a run with three ranges; by `--write-ranges DIR`, as trace-invalid/range_text.dmi
 *     ran/                 a run with six records of what ran; by `--write-ran DIR`, as trace-invalid/ran_shape.dmi
 *     sums/                a run with sums of two steps; by `--write-sums DIR`, as trace-invalid/sums_column.dmi
 *     trace-invalid/X.dmi  its segment with one thing wrong in its trace; X says what
 *     trace-unknown/X.dmi  likewise, with something that a later program of the same version may write
 */
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/ran.h"
#include "storage/table.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PART 20000 /* bytes of a segment where there are to be several */

static char *out;

static void set_up(void)
{
    out = kit_folder();
}

static void tear_down(void)
{
    kit_remove(out);
    free(out);
}

/* ------------------------------------------------------------------------- what is written */

/* Each field is another number. */
static struct dmi_step_times times_of(uint64_t number)
{
    return (struct dmi_step_times){ .number = number,
                                    .step = number ? number - 1 : DMI_NO_STEP,
                                    .begin_ns = 1000 * number + 1,
                                    .end_ns = 1000 * number + 999,
                                    .launch_ns = 1000 * number + 2,
                                    .device_ns = 700 + number,
                                    .gap_ns = 5 - (int64_t)number,
                                    .stall_ns = 11,
                                    .context = 300 * number,
                                    .launches = 41,
                                    .graph_launches = 2,
                                    .own = 7,
                                    .flags = DMI_STEP_HAS_DEVICE | DMI_STEP_HAS_GAP,
                                    .rows = 8,
                                    .requests = 3,
                                    .prefill = 4,
                                    .decode = 2,
                                    .device = 1,
                                    .thread = 77,
                                    .loads = 1,
                                    .allocations = 6,
                                    .waits = 9,
                                    .wait_us = 44,
                                    .engine_step = number + 5,
                                    .waited_ns = 1000 * number + 500,
                                    .source = DMI_STEP_ENGINE };
}

static void append(struct run *run, uint16_t type, const struct text *entries, size_t size,
                   const char *words)
{
    _cleanup_(text_deinit) struct text meta = { 0 }, strings = { 0 };
    text_add(&strings, words, strlen(words));
    ck_assert(table_meta(entries, size, &strings, &meta));
    ck_assert_int_eq(run_append_meta(run, type, &meta), 0);
}

static void append_times(struct run *run, uint64_t first, uint64_t n)
{
    _cleanup_(text_deinit) struct text entries = { 0 };
    for (uint64_t i = first; i < first + n; i++) {
        struct dmi_step_times at = times_of(i);
        text_add(&entries, (const char *)&at, sizeof at);
    }
    append(run, DMI_CHUNK_STEP_TIMES, &entries, sizeof(struct dmi_step_times), "");
}

static void append_marks(struct run *run)
{
    _cleanup_(text_deinit) struct text entries = { 0 };
    for (uint32_t kind = DMI_MARK_BEGUN; kind <= DMI_MARK_ENDED; kind++) {
        struct dmi_mark at = { .time_ns = 100 + kind,
                               .value = -(int64_t)kind,
                               .kind = kind,
                               .text_offset = 0,
                               .text_bytes = kind == DMI_MARK_BEGUN ? 5 : 0 };
        text_add(&entries, (const char *)&at, sizeof at);
    }
    append(run, DMI_CHUNK_MARKS, &entries, sizeof(struct dmi_mark), "steps");
}

static void append_ranges(struct run *run)
{
    static const char words[] = "Forward{\"rows\":3}Sample";
    _cleanup_(text_deinit) struct text entries = { 0 };
    const struct dmi_range_entry ranges[] = {
        { 110, 190, 4, 7, 1, DMI_RANGE_NVTX, 0, 7, 7, 10 },
        { 195, 198, DMI_NO_STEP, 8, 0, DMI_RANGE_SAID, 17, 6, 0, 0 },
        { 100, 200, 4, 7, 0, DMI_RANGE_SAID, 0, 0, 0, 0 },
    };
    text_add(&entries, (const char *)ranges, sizeof ranges);
    append(run, DMI_CHUNK_RANGES, &entries, sizeof ranges[0], words);
}

static const char *const ran_names[] = { "_Z4gemmPf", "rms_norm", "" };

/* Numbers that rise and fall, and that fill all bits. */
static struct ran ran_of(uint64_t i)
{
    uint32_t k = (uint32_t)i % 3;
    struct ran r = { .shape = { .kind = k + 1,
                                .device = k,
                                .context = 1,
                                .stream = 7 + k,
                                .grid = { 3 * k, 2, 1 },
                                .block = { 32, k, 1 },
                                .static_shared = 48,
                                .dynamic_shared = 1024 * k,
                                .registers = 40,
                                .how = k },
                     .name = ran_names[k],
                     .begin_ns = 1000 + 10 * i - 25 * (i % 2),
                     .end_ns = 1000 + 10 * i + i % 7,
                     .step = i % 5,
                     .correlation = i / 2,
                     .graph = i % 4 ? 9 : 0,
                     .node = i % 4 ? UINT64_MAX - i : 0,
                     .bytes = i == 4 ? UINT64_MAX : 100 * i,
                     .place = { i % 7 ? 0 : i % 5, i % 7 || i % 5 == 0 ? 0 : i % 30 } };
    r.shape.name_bytes = (uint32_t)strlen(r.name);
    return r;
}

/* @many_shapes: each record has a shape of its own. */
static void append_ran(struct run *run, uint64_t first, uint64_t n, bool many_shapes)
{
    struct ran_writer writer = { 0 };
    struct text meta = { 0 };
    for (uint64_t i = first; i < first + n; i++) {
        struct ran r = ran_of(i);
        if (many_shapes)
            r.shape.grid[2] = (uint32_t)i;
        ran_add(&writer, &r);
    }
    ck_assert_uint_eq(writer.n_shapes, many_shapes ? n : n < 3 ? n : 3);
    ck_assert(ran_meta(&writer, &meta));
    ck_assert_int_eq(run_append_meta(run, DMI_CHUNK_TRACE, &meta), 0);
    ran_deinit(&writer);
}

/* ------------------------------------------------------------------------- what is read */

struct seen_ran {
    uint64_t n;
    bool many_shapes;
};

static void take_ran(void *ctx, const struct ran *r)
{
    struct seen_ran *all = ctx;
    struct ran want = ran_of(all->n);
    if (all->many_shapes)
        want.shape.grid[2] = (uint32_t)all->n;
    want.shape.name_offset = r->shape.name_offset;
    ck_assert_mem_eq(&r->shape, &want.shape, sizeof want.shape);
    ck_assert_mem_eq(r->name, want.name, want.shape.name_bytes);
    ck_assert(r->begin_ns == want.begin_ns && r->end_ns == want.end_ns && r->step == want.step);
    ck_assert(r->correlation == want.correlation && r->graph == want.graph &&
              r->node == want.node && r->bytes == want.bytes);
    ck_assert(r->place.site == want.place.site && r->place.layer == want.place.layer);
    all->n++;
}

static uint64_t read_ran(struct reader *reader, bool many_shapes)
{
    struct err err = { 0 };
    struct seen_ran all = { .many_shapes = many_shapes };
    ck_assert_int_eq(reader_each_ran(&err, reader, take_ran, &all), 0);
    return all.n;
}

struct seen {
    struct dmi_step_times times[4096];
    size_t n;
    struct dmi_mark marks[64];
    char texts[64][16];
    size_t n_marks;
};

static void take_times(void *ctx, const struct dmi_step_times *at)
{
    struct seen *seen = ctx;
    ck_assert_uint_lt(seen->n, 4096);
    seen->times[seen->n++] = *at;
}

static void take_mark(void *ctx, const struct reader_mark *mark)
{
    struct seen *seen = ctx;
    snprintf(seen->texts[seen->n_marks], 16, "%.*s", (int)mark->at.text_bytes, mark->text);
    seen->marks[seen->n_marks++] = mark->at;
}

static struct seen seen;

static void read_trace(struct reader *reader)
{
    struct err err = { 0 };
    seen = (struct seen){ 0 };
    ck_assert_int_eq(reader_each_step_times(&err, reader, take_times, &seen), 0);
    ck_assert_int_eq(reader_each_mark(&err, reader, take_mark, &seen), 0);
    uint64_t n_times, n_marks;
    bool any;
    ck_assert_int_eq(reader_count_trace(reader, &n_times, &n_marks, &any), 0);
    ck_assert_uint_ge(n_times, seen.n);
    ck_assert_uint_ge(n_marks, seen.n_marks);
    ck_assert(any);
}

/* @bytes: of an entry, as the writer had it. */
static void expect_times(size_t i, uint64_t number, size_t bytes)
{
    struct dmi_step_times want = times_of(number);
    if (bytes <= offsetof(struct dmi_step_times, engine_step))
        want.engine_step = DMI_NO_STEP;
    if (bytes <= offsetof(struct dmi_step_times, waited_ns))
        want.waited_ns = 0;
    ck_assert_mem_eq(&seen.times[i], &want, sizeof want);
}

static void expect_golden(size_t bytes)
{
    ck_assert_uint_eq(seen.n, 3);
    for (size_t i = 0; i < 3; i++)
        expect_times(i, i, bytes);
    ck_assert_uint_eq(seen.n_marks, 5);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(seen.marks[i].kind, i + 1);
        ck_assert_int_eq(seen.marks[i].value, -(int64_t)i - 1);
        ck_assert_str_eq(seen.texts[i], i ? "" : "steps");
    }
}

static void write_trace(struct run *run)
{
    append_marks(run);
    append_times(run, 0, 1);
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    append_times(run, 1, 2);
}

START_TEST(times_and_marks_read_as_they_were_written)
{
    struct run *run = kit_open(out, 0);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    write_trace(run);
    {
        _cleanup_(reader_closep) struct reader *growing = kit_read(folder, true);
        read_trace(growing);
        expect_golden(sizeof(struct dmi_step_times));
        append_times(run, 3, 1);
        struct err err = { 0 };
        ck_assert_int_eq(reader_refresh(&err, growing), 0);
        read_trace(growing);
        ck_assert_uint_eq(seen.n, 4);
        expect_times(3, 3, sizeof(struct dmi_step_times));
    }
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert(kit_holds(reader, 8));
    read_trace(reader);
    ck_assert_uint_eq(seen.n, 4);
}
END_TEST

/* Segments go, oldest first, and what they had goes with them: what is left has no gap within. */
START_TEST(retention_deletes_times_with_their_segment_alone)
{
    const struct run_options more = { .segment_bytes = PART, .keep_bytes = 3 * PART };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    for (uint64_t i = 0; i < 1000; i++)
        append_times(run, i, 1);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    read_trace(reader);
    ck_assert_uint_gt(seen.n, PART / 256);
    ck_assert_uint_lt(seen.n, 900);
    for (size_t i = 0; i < seen.n; i++)
        expect_times(i, 1000 - seen.n + i, sizeof(struct dmi_step_times));
}
END_TEST

START_TEST(a_killed_process_leaves_what_it_appended)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) {
        struct run *run = kit_open(out, 0);
        write_trace(run);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_int_eq(reader_run(reader)->state, READER_KILLED);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    read_trace(reader);
    expect_golden(sizeof(struct dmi_step_times));
}
END_TEST

/* tests/golden/v2/NAME, opened. */
static struct reader *read_golden(const char *name)
{
    char path[4096];
    const char *dir = getenv("TEST_GOLDEN");
    ck_assert_ptr_nonnull(dir);
    snprintf(path, sizeof path, "%s/v2/%s", dir, name);
    return kit_read(path, true);
}

START_TEST(the_golden_trace_reads_as_it_did)
{
    _cleanup_(reader_closep) struct reader *reader = read_golden("trace");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    read_trace(reader);
    expect_golden(128);
    _cleanup_(reader_closep) struct reader *with_steps = read_golden("trace-steps");
    ck_assert_uint_eq(reader_n_findings(with_steps), 0);
    read_trace(with_steps);
    expect_golden(136);
    _cleanup_(reader_closep) struct reader *with_waits = read_golden("trace-waits");
    ck_assert_uint_eq(reader_n_findings(with_waits), 0);
    read_trace(with_waits);
    expect_golden(144);
}
END_TEST

struct seen_ranges {
    struct dmi_range_entry at[8];
    char texts[8][32];
    size_t n;
};

static void take_range(void *ctx, const struct reader_range *range)
{
    struct seen_ranges *r = ctx;
    ck_assert_uint_lt(r->n, 8);
    snprintf(r->texts[r->n], 32, "%.*s|%.*s", (int)range->at.name_bytes, range->name,
             (int)range->at.facts_bytes, range->facts);
    r->at[r->n++] = range->at;
}

START_TEST(the_golden_ranges_read_as_they_did)
{
    struct err err = { 0 };
    struct seen_ranges r = { 0 };
    _cleanup_(reader_closep) struct reader *reader = read_golden("ranges");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_int_eq(reader_each_range(&err, reader, take_range, &r), 0);
    ck_assert_uint_eq(r.n, 3);
    ck_assert_str_eq(r.texts[0], "Forward|{\"rows\":3}");
    ck_assert_str_eq(r.texts[1], "Sample|");
    ck_assert_str_eq(r.texts[2], "|");
    ck_assert(r.at[0].begin_ns == 110 && r.at[0].end_ns == 190 && r.at[0].step == 4 &&
              r.at[0].thread == 7 && r.at[0].depth == 1 && r.at[0].source == DMI_RANGE_NVTX);
    _cleanup_(reader_closep) struct reader *wrong = read_golden("trace-invalid/range_text.dmi");
    ck_assert_uint_eq(kit_damage(wrong, NULL), 1);
    r.n = 0;
    ck_assert_int_eq(reader_each_range(&err, wrong, take_range, &r), 0);
    ck_assert_uint_eq(r.n, 2);
}
END_TEST

START_TEST(what_ran_reads_as_it_was_written)
{
    bool many = _i;
    struct run *run = kit_open(out, 0);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    append_ran(run, 0, 3000, many);
    append_ran(run, 3000, 1, many);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(read_ran(reader, many), 3001);
}
END_TEST

/* A kernel as an engine's steps have them: its bytes are the aim of docs/trace.md. */
START_TEST(a_kernel_takes_few_bytes)
{
    struct ran_writer writer = { 0 };
    char name[100];
    for (uint64_t i = 0; i < 16000; i++) {
        snprintf(name, sizeof name, "_ZN7kernels4gemm%02u%070u", (unsigned)(i % 40), 0u);
        struct ran r = { .shape = { .kind = DMI_RAN_KERNEL,
                                    .name_bytes = (uint32_t)strlen(name),
                                    .context = 1,
                                    .stream = 7,
                                    .grid = { (uint32_t)(i % 40), 1, 1 },
                                    .block = { 128, 1, 1 } },
                         .name = name,
                         .begin_ns = 1700000000000000000 + 7800 * i,
                         .end_ns = 1700000000000000000 + 7800 * i + 6000 + i % 900,
                         .step = i / 1600,
                         .correlation = i / 1600,
                         .graph = 3,
                         .node = 400 + i % 1600 };
        ran_add(&writer, &r);
    }
    ck_assert_uint_le(ran_bytes(&writer), 16000 * 12);
    ran_deinit(&writer);
}
END_TEST

START_TEST(the_golden_records_of_what_ran_read_as_they_did)
{
    _cleanup_(reader_closep) struct reader *reader = read_golden("ran");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(read_ran(reader, false), 6);
    _cleanup_(reader_closep) struct reader *wrong = read_golden("trace-invalid/ran_shape.dmi");
    ck_assert_uint_eq(kit_damage(wrong, NULL), 1);
    ck_assert_uint_eq(read_ran(wrong, false), 3); /* those before it stay */
}
END_TEST

START_TEST(the_golden_sites_read_as_they_did)
{
    _cleanup_(reader_closep) struct reader *reader = read_golden("ran-sites");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(read_ran(reader, false), 20);
    _cleanup_(reader_closep) struct reader *wrong = read_golden("trace-invalid/ran_layer.dmi");
    ck_assert_uint_eq(kit_damage(wrong, NULL), 1);
    ck_assert_uint_eq(read_ran(wrong, false), 0);
}
END_TEST

/* ------------------------------------------------------------------------- sums */

/* Two steps and what is of none: each has a sum of all, of two kernels, of further ones and of copies. */
static struct ran_sum sum_of(uint64_t i)
{
    static const uint32_t kinds[] = { DMI_RAN_BUSY, DMI_RAN_KERNEL, DMI_RAN_KERNEL, DMI_RAN_FURTHER,
                                      DMI_RAN_COPY };
    uint32_t kind = kinds[i % 5];
    struct ran_sum s = { .shape = { .kind = kind,
                                    .device = kind == DMI_RAN_BUSY ? 0 : 1,
                                    .static_shared = kind == DMI_RAN_KERNEL ? 48 : 0,
                                    .registers = kind == DMI_RAN_KERNEL ? 40 : 0,
                                    .how = kind == DMI_RAN_COPY ? 2 : 0 },
                         .name = kind == DMI_RAN_KERNEL ? ran_names[i % 5 - 1] : "",
                         .begin_ns = 1700000000000000000 + 1000 * (i / 5),
                         .step = i < 10 ? DMI_RAN_FIRST + 7 + i / 5 : DMI_RAN_OUTSIDE,
                         .n = 3 * i + 1,
                         .sum_ns = i == 6 ? UINT64_MAX : 1000 * i,
                         .most_ns = 70 * i,
                         .bytes = kind == DMI_RAN_COPY || kind == DMI_RAN_BUSY ? 4096 + i : 0 };
    s.shape.name_bytes = (uint32_t)strlen(s.name);
    return s;
}

static void add_sums(struct ran_writer *writer, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct ran_sum s = sum_of(i);
        ran_add_sum(writer, &s);
    }
    ck_assert_uint_eq(writer->n_shapes, n < 5 ? n : 5);
}

static void append_sums(struct run *run, uint64_t n)
{
    struct ran_writer writer = { 0 };
    struct text meta = { 0 };
    add_sums(&writer, n);
    ck_assert(ran_meta(&writer, &meta));
    ck_assert_int_eq(run_append_meta(run, DMI_CHUNK_SUMS, &meta), 0);
    ran_deinit(&writer);
}

static void take_sum(void *ctx, const struct ran_sum *s)
{
    struct ran_sum want = sum_of((*(uint64_t *)ctx)++);
    want.shape.name_offset = s->shape.name_offset;
    ck_assert_mem_eq(&s->shape, &want.shape, sizeof want.shape);
    ck_assert_mem_eq(s->name, want.name, want.shape.name_bytes);
    ck_assert(s->begin_ns == want.begin_ns && s->step == want.step && s->n == want.n &&
              s->sum_ns == want.sum_ns && s->most_ns == want.most_ns && s->bytes == want.bytes);
}

static uint64_t read_sums(struct reader *reader)
{
    struct err err = { 0 };
    uint64_t n = 0;
    ck_assert_int_eq(reader_each_sum(&err, reader, take_sum, &n), 0);
    return n;
}

START_TEST(sums_read_as_they_were_written)
{
    struct run *run = kit_open(out, 0);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    append_sums(run, 15);
    append_ran(run, 0, 3, false);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(read_sums(reader), 15);
    ck_assert_uint_eq(read_ran(reader, false), 3);
}
END_TEST

START_TEST(the_golden_sums_read_as_they_did)
{
    _cleanup_(reader_closep) struct reader *reader = read_golden("sums");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(read_sums(reader), 15);
    _cleanup_(reader_closep) struct reader *wrong = read_golden("trace-invalid/sums_column.dmi");
    ck_assert_uint_eq(kit_damage(wrong, NULL), 1);
    ck_assert_uint_eq(read_sums(wrong), 0);
}
END_TEST

START_TEST(sizes_of_sums_must_fit)
{
    struct ran_writer writer = { 0 };
    struct text meta = { 0 };
    struct ran_reader reader;
    add_sums(&writer, 6);
    ck_assert(ran_meta(&writer, &meta));
    for (size_t n = 0; n <= meta.n; n++)
        ck_assert(!ran_open_sums(&reader, (const uint8_t *)meta.data, n) == (n == meta.n));
    ck_assert_ptr_nonnull(ran_open(&reader, (const uint8_t *)meta.data, meta.n));
    text_deinit(&meta);
    ran_deinit(&writer);
}
END_TEST

/* ------------------------------------------------------------------------- what is wrong */

/* No metadata that is cut short, or has a byte more, is taken. */
START_TEST(sizes_of_what_ran_must_fit)
{
    struct ran_writer writer = { 0 };
    struct text meta = { 0 };
    struct ran_reader reader;
    for (uint64_t i = 0; i < 6; i++) {
        struct ran r = ran_of(i);
        ran_add(&writer, &r);
    }
    ck_assert(ran_meta(&writer, &meta));
    for (size_t n = 0; n <= meta.n; n++)
        ck_assert(!ran_open(&reader, (const uint8_t *)meta.data, n) == (n == meta.n));
    struct dmi_trace_head *head = (struct dmi_trace_head *)(void *)meta.data;
    head->n_records = 7;
    ck_assert_ptr_nonnull(ran_open(&reader, (const uint8_t *)meta.data, meta.n));
    head->n_records = UINT32_MAX;
    ck_assert_ptr_nonnull(ran_open(&reader, (const uint8_t *)meta.data, meta.n));
    text_deinit(&meta);
    ran_deinit(&writer);
}
END_TEST

static struct dmi_table_head *head_of(uint8_t *c)
{
    return (struct dmi_table_head *)(c + sizeof(struct dmi_chunk_header));
}

static struct dmi_step_times *times_in(uint8_t *c, size_t i)
{
    return (struct dmi_step_times *)(head_of(c) + 1) + i;
}

static struct dmi_mark *mark_in(uint8_t *c)
{
    return (struct dmi_mark *)(head_of(c) + 1);
}

static void bad_entries(uint8_t *c)
{
    head_of(c)->n_entries = 0xffffffff;
}
static void bad_size(uint8_t *c)
{
    head_of(c)->entry_bytes = 120;
}
static void bad_mark_reserved(uint8_t *c)
{
    mark_in(c)->reserved = 1;
}
static void bad_text(uint8_t *c)
{
    mark_in(c)->text_bytes = 6;
}
static void other_flags(uint8_t *c)
{
    head_of(c)->flags = 7;
    times_in(c, 0)->flags |= 0xf0000000;
    times_in(c, 0)->source = 99;
}
static void other_kind(uint8_t *c)
{
    mark_in(c)->kind = 99;
}
/* Entries of 144 bytes. */
static void other_size(uint8_t *c)
{
    uint8_t *first = (uint8_t *)times_in(c, 0);
    size_t size = sizeof(struct dmi_step_times);
    memmove(first + size + 8, first + size, size);
    memset(first + size, 0xee, 8);
    memset(first + 2 * size + 8, 0xee, 8);
    head_of(c)->entry_bytes += 8;
    ((struct dmi_chunk_header *)c)->n_meta += 16;
}

static const struct {
    const char *name;
    enum dmi_chunk_type type; /* the last chunk of it */
    void (*make)(uint8_t *chunk);
} wrongs[] = {
    { "trace-invalid/entries", DMI_CHUNK_STEP_TIMES, bad_entries },
    { "trace-invalid/size", DMI_CHUNK_STEP_TIMES, bad_size },
    { "trace-invalid/mark_reserved", DMI_CHUNK_MARKS, bad_mark_reserved },
    { "trace-invalid/text", DMI_CHUNK_MARKS, bad_text },
    { "trace-unknown/flags", DMI_CHUNK_STEP_TIMES, other_flags },
    { "trace-unknown/kind", DMI_CHUNK_MARKS, other_kind },
    { "trace-unknown/size", DMI_CHUNK_STEP_TIMES, other_size },
};
#define N_WRONGS (sizeof wrongs / sizeof wrongs[0])

START_TEST(wrong_entries_are_damage_and_lose_themselves_alone)
{
    char name[64];
    bool invalid = strstr(wrongs[_i].name, "invalid");
    snprintf(name, sizeof name, "%s.dmi", wrongs[_i].name);
    _cleanup_(reader_closep) struct reader *reader = read_golden(name);
    ck_assert_msg(kit_damage(reader, NULL) == invalid, "%s", wrongs[_i].name);
    read_trace(reader);
    bool of_marks = wrongs[_i].type == DMI_CHUNK_MARKS;
    ck_assert_uint_eq(seen.n_marks, invalid && of_marks ? 4 : 5);
    if (!of_marks)
        ck_assert_uint_eq(seen.n, invalid ? 1 : 3);
}
END_TEST

static uint64_t chunk_size(const uint8_t *chunk)
{
    struct dmi_chunk_header h;
    memcpy(&h, chunk, sizeof h);
    return sizeof h + chunk_pad(h.n_meta) + chunk_pad(h.n_payload);
}

/* The last chunk of a type; it is the end of what is kept, as an index would contradict it. */
static void write_wrong(const char *dir, const uint8_t *segment, size_t n, size_t which)
{
    _cleanup_(freep) uint8_t *data = calloc(1, n + 64);
    memcpy(data, segment, n);
    uint8_t *at = data + sizeof(struct dmi_segment_header), *last = NULL;
    for (; ((struct dmi_chunk_header *)at)->type != DMI_CHUNK_FOOTER; at += chunk_size(at))
        if (((struct dmi_chunk_header *)at)->type == wrongs[which].type)
            last = at;
    if (wrongs[which].type == DMI_CHUNK_STEP_TIMES)
        memset(last + chunk_size(last), 0, (size_t)(data + n + 64 - last) - chunk_size(last));
    wrongs[which].make(last);
    struct dmi_chunk_header h;
    memcpy(&h, last, sizeof h);
    h.meta_hash = hash_bytes(last + sizeof h, h.n_meta);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(last, &h, sizeof h);
    uint8_t *end = wrongs[which].type == DMI_CHUNK_STEP_TIMES ? last + chunk_size(last) : at;
    char name[64];
    snprintf(name, sizeof name, "%s.dmi", wrongs[which].name);
    kit_store(dir, name, data, (size_t)(end - data));
}

static const char *golden_target;

/* Closes the run, which becomes the folder @name. Return: its only segment, *@n bytes. */
static uint8_t *golden_segment(struct run *run, const char *name, size_t *n)
{
    char path[4096];
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(path, sizeof path, "%s/%s", golden_target, name);
    ck_assert_int_eq(rename(made, path), 0);
    return kit_load(path, "seg-000000.dmi", n);
}

/* The first chunk of @type in a segment. */
static uint8_t *first_of(uint8_t *segment, uint32_t type)
{
    uint8_t *at = segment + sizeof(struct dmi_segment_header);
    while (((struct dmi_chunk_header *)at)->type != type)
        at += chunk_size(at);
    return at;
}

/* The segment up to and with the chunk @at, whose metadata was changed. */
static void store_changed(const char *name, const uint8_t *segment, uint8_t *at)
{
    struct dmi_chunk_header h;
    memcpy(&h, at, sizeof h);
    h.meta_hash = hash_bytes(at + sizeof h, h.n_meta);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(at, &h, sizeof h);
    kit_store(golden_target, name, segment, (size_t)(at - segment) + chunk_size(at));
}

START_TEST(write_golden_files)
{
    char path[4096];
    static const char *const folders[] = { "trace-invalid", "trace-unknown" };
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", golden_target, folders[i]);
        mkdir(path, 0755);
    }
    struct run *run = kit_open(golden_target, 0);
    write_trace(run);
    size_t n;
    _cleanup_(freep) uint8_t *intact = golden_segment(run, "trace", &n);
    for (size_t i = 0; i < N_WRONGS; i++)
        write_wrong(golden_target, intact, n, i);
}
END_TEST

START_TEST(write_golden_steps)
{
    size_t n;
    struct run *run = kit_open(golden_target, 0);
    write_trace(run);
    free(golden_segment(run, "trace-waits", &n));
}
END_TEST

/* A run with ranges, and its segment with a name that lies outside of the strings. */
START_TEST(write_golden_ranges)
{
    size_t n;
    struct run *run = kit_open(golden_target, 0);
    append_ranges(run);
    _cleanup_(freep) uint8_t *data = golden_segment(run, "ranges", &n);
    uint8_t *at = first_of(data, DMI_CHUNK_RANGES);
    ((struct dmi_range_entry *)(head_of(at) + 1))[1].name_bytes = 7;
    store_changed("range_text.dmi", data, at);
}
END_TEST

/* A run with records of what ran, and its segment with one that names no shape. */
START_TEST(write_golden_ran)
{
    size_t n;
    struct run *run = kit_open(golden_target, 0);
    append_ran(run, 0, 6, false);
    _cleanup_(freep) uint8_t *data = golden_segment(run, "ran", &n);
    uint8_t *at = first_of(data, DMI_CHUNK_TRACE), *meta = at + sizeof(struct dmi_chunk_header);
    struct dmi_trace_head head;
    memcpy(&head, meta, sizeof head);
    meta[sizeof head + 64 * head.n_shapes + head.n_string_bytes + 3] = 3;
    store_changed("ran_shape.dmi", data, at);
}
END_TEST

/* A run whose kernels have sites and layers, and its segment with a last column that does not end. */
START_TEST(write_golden_sites)
{
    size_t n;
    struct run *run = kit_open(golden_target, 0);
    append_ran(run, 0, 20, false);
    _cleanup_(freep) uint8_t *data = golden_segment(run, "ran-sites", &n);
    uint8_t *at = first_of(data, DMI_CHUNK_TRACE);
    struct dmi_chunk_header h;
    memcpy(&h, at, sizeof h);
    at[sizeof h + h.n_meta - 1] |= 0x80;
    store_changed("ran_layer.dmi", data, at);
}
END_TEST

/* A run with sums, and its segment with a column that ends before its last number. */
START_TEST(write_golden_sums)
{
    size_t n;
    struct run *run = kit_open(golden_target, 0);
    append_sums(run, 15);
    _cleanup_(freep) uint8_t *data = golden_segment(run, "sums", &n);
    uint8_t *at = first_of(data, DMI_CHUNK_SUMS);
    struct dmi_chunk_header h;
    memcpy(&h, at, sizeof h);
    at[sizeof h + h.n_meta - 1] |= 0x80;
    store_changed("sums_column.dmi", data, at);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("storage_trace");
    TCase *tc = tcase_create("trace");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_files);
    } else if (argc == 3 && !strcmp(argv[1], "--write-steps")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_steps);
    } else if (argc == 3 && !strcmp(argv[1], "--write-ranges")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_ranges);
    } else if (argc == 3 && !strcmp(argv[1], "--write-ran")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_ran);
    } else if (argc == 3 && !strcmp(argv[1], "--write-sites")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_sites);
    } else if (argc == 3 && !strcmp(argv[1], "--write-sums")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_sums);
    } else {
        tcase_add_loop_test(tc, what_ran_reads_as_it_was_written, 0, 2);
        tcase_add_test(tc, a_kernel_takes_few_bytes);
        tcase_add_test(tc, the_golden_records_of_what_ran_read_as_they_did);
        tcase_add_test(tc, the_golden_sites_read_as_they_did);
        tcase_add_test(tc, sizes_of_what_ran_must_fit);
        tcase_add_test(tc, sums_read_as_they_were_written);
        tcase_add_test(tc, the_golden_sums_read_as_they_did);
        tcase_add_test(tc, sizes_of_sums_must_fit);
        tcase_add_test(tc, times_and_marks_read_as_they_were_written);
        tcase_add_test(tc, retention_deletes_times_with_their_segment_alone);
        tcase_add_test(tc, a_killed_process_leaves_what_it_appended);
        tcase_add_test(tc, the_golden_trace_reads_as_it_did);
        tcase_add_test(tc, the_golden_ranges_read_as_they_did);
        tcase_add_loop_test(tc, wrong_entries_are_damage_and_lose_themselves_alone, 0, N_WRONGS);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
