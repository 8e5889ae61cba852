/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of rows, from the writer to the reader; and runs of two ranks of known content. `test_storage_outcomes
 * --write DIR` made these files of tests/golden/v2 once; they are never edited:
 *
 *     ranks/rank-0, rank-1   two ranks of one command: divided, added and alike tensors, drafts, ends
 *     outcomes/X.dmi         the segment of rank 0 with one thing wrong in its OUTCOMES; X says what
 *     outcomes-unknown/X.dmi likewise, with something that a later program of the same version may write
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/elements.h"
#include "storage/writer/outcomes.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

/* ------------------------------------------------------------------------- what is remembered */

static struct dmi_step step_with(uint64_t number, const struct dmi_span *spans, uint32_t n)
{
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++)
        if (spans[i].first_row + spans[i].n_tokens > n_rows)
            n_rows = spans[i].first_row + spans[i].n_tokens;
    return (struct dmi_step){ .size = sizeof(struct dmi_step),
                              .version = 1,
                              .step = number,
                              .n_rows = n_rows,
                              .n_spans = n,
                              .spans = spans };
}

#define DRAFT DMI_PHASE_DRAFT

START_TEST(an_outcome_is_refused_by_what_is_wrong_with_it)
{
    const struct dmi_span spans[] = {
        { .request_id = "a", .first_position = 7, .first_row = 2, .n_tokens = 2, .phase = DRAFT },
        { .request_id = "a", .first_position = 5, .n_tokens = 1, .phase = DRAFT },
        { .request_id = "b", .first_row = 4, .n_tokens = 2, .phase = DMI_PHASE_DECODE },
    };
    static struct outcomes o;
    const char *why = NULL;
    struct dmi_step step = step_with(3, spans, 3);
    ck_assert_int_eq(outcomes_step(&o, 40, &step), 0);
    ck_assert_int_eq(outcomes_accept(&o, "a", 4, 1, &why), -ENOENT);
    ck_assert_int_eq(outcomes_accept(&o, "b", 3, 1, &why), -ENOENT);
    ck_assert_int_eq(outcomes_accept(&o, "c", 3, 1, &why), -ENOENT);
    ck_assert_int_eq(outcomes_accept(&o, "a", 3, 4, &why), -EINVAL);
    ck_assert_int_eq(outcomes_accept(&o, NULL, 3, 1, &why), -EINVAL);
    ck_assert_int_eq(outcomes_accept(&o, "a", 3, 2, &why), 0);
    ck_assert_int_eq(outcomes_accept(&o, "a", 3, 2, &why), -EALREADY);
    /* by position: the second span comes first */
    const struct dmi_outcome *e = (const void *)o.entries.data;
    ck_assert_uint_eq(o.entries.n, 2 * sizeof *e);
    ck_assert(e[0].step == 40 && e[0].span == 1 && e[0].n_accepted == 1);
    ck_assert(e[1].span == 0 && e[1].n_accepted == 1 && e[1].accepted == DMI_OUTCOME_FIRST);
    /* a later step of the same number is the one that is meant */
    step = step_with(3, spans + 2, 1);
    ck_assert_int_eq(outcomes_step(&o, 41, &step), 0);
    ck_assert_int_eq(outcomes_accept(&o, "a", 3, 2, &why), -ENOENT);
    outcomes_deinit(&o);
}
END_TEST

START_TEST(memory_is_bounded)
{
    static struct outcomes o;
    static char ids[400][256];
    static struct dmi_span spans[400];
    const char *why = NULL;
    for (uint32_t i = 0; i < 400; i++) {
        snprintf(ids[i], sizeof ids[i], "%0255u", i);
        spans[i] = (struct dmi_span){
            .request_id = ids[i], .first_row = i, .n_tokens = 1, .phase = DRAFT
        };
    }
    for (uint64_t n = 0; n < 2000; n++) {
        struct dmi_step step = step_with(n, spans, n < 200 ? 400 : 1);
        ck_assert_int_eq(outcomes_step(&o, n, &step), 0);
        ck_assert_uint_le(o.n_bytes, OUTCOMES_MAX_BYTES);
        ck_assert_uint_le(o.n_steps, OUTCOMES_MAX_STEPS);
    }
    ck_assert_int_eq(outcomes_accept(&o, ids[0], 100, 1, &why), -ENOENT);
    ck_assert_int_eq(outcomes_accept(&o, ids[0], 1999, 1, &why), 0);
    int r = 0;
    size_t n = 0;
    for (; !r && n < 1000000; n++)
        r = outcomes_end(&o, ids[0], DMI_END_STOP, &why);
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_le(o.entries.n + o.text.n, OUTCOMES_MAX_WAITING);
    struct text meta = { 0 };
    ck_assert(outcomes_take(&o, &meta) && !outcomes_take(&o, &meta));
    ck_assert_int_eq(outcomes_end(&o, ids[0], DMI_END_STOP, &why), 0);
    text_deinit(&meta);
    outcomes_deinit(&o);
}
END_TEST

/* ------------------------------------------------------------------------- written and read */

static void expect_outcomes(const struct reader *reader)
{
    uint32_t n;
    const struct reader_step *step = reader_step(reader, 1);
    ck_assert_ptr_null(reader_outcome_of(step, 1));
    const struct reader_outcome *o = reader_outcome_of(step, 0);
    ck_assert_ptr_nonnull(o);
    ck_assert_uint_eq(o->at.n_accepted, 2);
    ck_assert(reader_outcome_has(o, 0, &n) && n == 2);
    ck_assert(reader_outcome_has(o, 1, &n) && n == 1);
    ck_assert(!reader_outcome_has(o, 2, &n) && n == UINT32_MAX);
    ck_assert(reader_outcome_has(NULL, 7, &n) && n == UINT32_MAX);
    ck_assert_uint_eq(reader_n_ends(reader), 2);
    const struct reader_end *end = reader_end(reader, 0);
    ck_assert(end->n_id == 1 && *end->id == 'b' && end->reason == DMI_END_ABORTED &&
              end->after == 2);
    end = reader_end(reader, 1);
    ck_assert(end->n_id == 1 && *end->id == 'a' && end->reason == DMI_END_LENGTH &&
              end->after == 3);
}

static void put_step(struct run *run, uint64_t number, uint32_t phase)
{
    const struct dmi_span spans[] = {
        { .request_id = "a", .first_position = (int64_t)number, .n_tokens = 3, .phase = phase },
        { .request_id = "b", .first_position = (int64_t)number, .first_row = 3, .n_tokens = 1 },
    };
    struct dmi_step step = step_with(100 + number, spans, 2);
    ck_assert_int_eq(run_step(run, number, &step), 0);
}

static void put_outcomes(struct run *run)
{
    put_step(run, 0, DMI_PHASE_PREFILL);
    put_step(run, 1, DRAFT);
    ck_assert_int_eq(run_request_end(run, "b", DMI_END_ABORTED), 0);
    ck_assert_int_eq(run_accept(run, "a", 101, 2), 0);
    put_step(run, 2, DMI_PHASE_DECODE);
}

START_TEST(outcomes_are_read_while_the_run_grows_and_when_it_is_closed)
{
    struct run *run = kit_open(out, 0);
    put_outcomes(run);
    ck_assert_int_eq(run_commit(run), 0);
    ck_assert_int_eq(run_commit(run), 0); /* nothing waits */
    _cleanup_(reader_closep) struct reader *growing = kit_read(out, false);
    ck_assert_uint_eq(reader_n_ends(growing), 1);
    ck_assert_int_eq(run_request_end(run, "a", DMI_END_LENGTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    struct err err = { 0 };
    ck_assert_int_eq(reader_refresh(&err, growing), 0);
    expect_outcomes(growing);
    _cleanup_(reader_closep) struct reader *closed = kit_read(out, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(closed, &first), "%s", first ? first->text : "");
    expect_outcomes(closed);
}
END_TEST

START_TEST(what_could_not_be_written_is_written_later)
{
    struct run *run = kit_open(out, 0);
    struct rlimit was, none;
    put_outcomes(run);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    none = was;
    none.rlim_cur = 512;            /* less than there is */
    setrlimit(RLIMIT_FSIZE, &none); /* Check writes a file too: no assertion meanwhile */
    int first = run_commit(run), end = run_request_end(run, "a", DMI_END_LENGTH);
    int second = run_commit(run);
    setrlimit(RLIMIT_FSIZE, &was);
    ck_assert(first == -EFBIG && !end && second == -EFBIG);
    ck_assert_int_eq(run_commit(run), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    expect_outcomes(reader);
}
END_TEST

/* ------------------------------------------------------------------------- sums */

START_TEST(every_small_float_is_its_own_sum_and_ties_go_to_even)
{
    static const uint32_t dtypes[] = { DMI_DTYPE_F16, DMI_DTYPE_BF16, DMI_DTYPE_F8E4M3,
                                       DMI_DTYPE_F8E5M2 };
    for (size_t d = 0; d < 4; d++) {
        uint32_t n = dmi_dtype_bytes(dtypes[d]) == 1 ? 256 : 65536;
        double before = 0;
        for (uint32_t bits = 0, again; bits < n; bits++) {
            union elements_sum sum = { 0 }, half = { 0 };
            double v;
            again = 0;
            elements_to_double(dtypes[d], &bits, 1, &v);
            sum.real = v;
            elements_from_sums(dtypes[d], &sum, 1, &again);
            ck_assert_msg(again == bits || v != v, "%u: %x became %x", dtypes[d], bits, again);
            half.real = (v + before) / 2;
            elements_from_sums(dtypes[d], &half, 1, &again);
            if (bits && bits < n / 2 && v - v == 0) /* the next one up, positive and finite */
                ck_assert_uint_eq(again, bits & 1 ? bits - 1 : bits);
            before = v;
        }
    }
}
END_TEST

START_TEST(integers_are_added_by_their_bits)
{
    const int8_t a[] = { 127, -5, 3 }, b[] = { 1, -6, -3 };
    int8_t sum[3];
    union elements_sum sums[3] = { { 0 } };
    elements_add(DMI_DTYPE_I8, a, 3, sums);
    elements_add(DMI_DTYPE_I8, b, 3, sums);
    elements_from_sums(DMI_DTYPE_I8, sums, 3, sum);
    ck_assert(sum[0] == -128 && sum[1] == -11 && sum[2] == 0);
}
END_TEST

/* ------------------------------------------------------------------------- golden files */

#define N_LAYERS 2

static const char *golden(const char *name)
{
    static char path[4096];
    const char *dir = getenv("TEST_GOLDEN");
    snprintf(path, sizeof path, "%s/v2/%s", dir ? dir : "tests/golden", name);
    return path;
}

/* Element of the complete tensor: by site, layer, forward, row, column. */
static float value(uint32_t site, int32_t layer, uint64_t forward, uint32_t row, uint32_t column)
{
    return (float)(((((site * 4 + (uint32_t)layer) * 16 + forward) * 16) + row) * 16 + column);
}

static uint32_t widths(int rank)
{
    return rank ? 5 : 3; /* of the divided tensor */
}

static void put_record(struct run *run, int rank, uint32_t site, int32_t layer, uint64_t forward)
{
    float data[4 * 8];
    uint32_t width = site ? 8 : widths(rank), first = site || !rank ? 0 : widths(0);
    for (uint32_t i = 0; i < 4 * width; i++) {
        data[i] = value(site, layer, forward, i / width, first + i % width);
        data[i] = site == 1 && rank ? 1000 : data[i]; /* its part of the sum */
    }
    const struct run_record rec = { .site = site,
                                    .layer = layer,
                                    .occurrence = (uint32_t)layer,
                                    .dtype = DMI_DTYPE_F32,
                                    .launch = 10 * forward + site * N_LAYERS + (uint32_t)layer + 2,
                                    .forward = forward,
                                    .step = forward,
                                    .time_ns = 5000 + forward,
                                    .n_dims = 2,
                                    .dims = { 4, width },
                                    .data = data,
                                    .n_bytes = 16ull * width };
    struct dmi_site_counters *c = &run_counters(run)->sites[site];
    c->expected.records = ++c->captured.records;
    c->expected.rows = c->captured.rows += 4;
    c->expected.bytes = c->captured.bytes += rec.n_bytes;
    ck_assert_int_eq(run_append(run, &rec, 1), 0);
}

static void write_rank(const char *dir, int rank)
{
    const struct dmi_site sites[] = {
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
          .dtype = DMI_DTYPE_F32,
          .scale = 1,
          .expect = -1,
          .has_layer = true },
    };
    const struct run_options options = { .out_dir = dir,
                                         .job = "golden",
                                         .sites = sites,
                                         .n_sites = 3,
                                         .spec_text = "hookspec: 1\n",
                                         .n_spec_text = 12 };
    struct err err = { 0 };
    struct run *run = NULL;
    ck_assert_msg(!run_open(&err, &options, &run), "%s", err.msg);
    for (uint64_t f = 0; f < 3; f++) {
        const struct dmi_span spans[] = {
            { .request_id = "a",
              .first_position = (int64_t)f * 2,
              .n_tokens = 3,
              .n_prompt = 2,
              .phase = f ? DRAFT : DMI_PHASE_PREFILL },
            { .request_id = "b",
              .first_position = (int64_t)f,
              .first_row = 3,
              .n_tokens = 1,
              .phase = DMI_PHASE_DECODE },
        };
        struct dmi_step step = step_with(f, spans, 2);
        step.n_rows = 4;
        step.tp_rank = rank;
        step.tp_size = 2;
        ck_assert_int_eq(run_step(run, f, &step), 0);
        for (uint32_t s = 0; s < 3; s++)
            for (int32_t layer = 0; layer < N_LAYERS; layer++)
                put_record(run, rank, s, layer, f);
    }
    if (!rank) { /* who serves knows */
        ck_assert_int_eq(run_accept(run, "a", 1, 2), 0);
        ck_assert_int_eq(run_accept(run, "a", 2, 1), 0);
        ck_assert_int_eq(run_request_end(run, "a", DMI_END_STOP), 0);
    }
    _cleanup_(freep) char *made = strdup(run_path(run));
    char name[8300];
    snprintf(name, sizeof name, "%s/rank-%d", dir, rank);
    ck_assert_int_eq(run_close(run), 0);
    ck_assert_int_eq(rename(made, name), 0);
}

static void expect_record(struct reader *reader, const struct reader_record *rec)
{
    float data[32];
    struct err err = { 0 };
    uint32_t site = rec->at.site;
    ck_assert(rec->at.dims[0] == 4 && rec->at.dims[1] == 8 && rec->at.n_bytes == sizeof data);
    ck_assert_msg(!reader_decode(&err, reader, rec, data), "%s", err.msg);
    for (uint32_t i = 0; i < 32; i++) {
        float want = value(site, rec->at.layer, rec->at.forward, i / 8, i % 8);
        ck_assert_float_eq(data[i], site == 1 ? want + 1000 : want);
    }
}

START_TEST(the_golden_ranks_are_joined_as_they_were)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(golden("ranks"), true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s", first ? first->text : "");
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(reader_run(reader)->n_runs, 2);
    ck_assert_uint_eq(reader_n_records(reader), 18);
    ck_assert_uint_eq(reader_n_steps(reader), 3);
    for (size_t i = 0; i < 18; i++)
        expect_record(reader, reader_record(reader, i));
    ck_assert_uint_eq(reader_outcome_of(reader_step(reader, 1), 0)->at.n_accepted, 2);
    ck_assert_uint_eq(reader_n_ends(reader), 1);
    ck_assert_uint_eq(reader_end(reader, 0)->after, 3);
    const int32_t second[] = { 1, -1, -1, -1 }, third[] = { 2, -1, -1, -1 };
    ck_assert_uint_eq(reader_only_ranks(reader, third), 0);
    ck_assert_uint_eq(reader_only_ranks(reader, second), 1);
    struct err err = { 0 };
    ck_assert_int_eq(reader_select(&err, reader, NULL), 0);
    ck_assert_uint_eq(reader_n_records(reader), 18);
    ck_assert_uint_eq(reader_record(reader, 0)->at.dims[1], 5);
}
END_TEST

/* Files of a folder that are damage (or, @unknown, are not), each by itself. Return: how many. */
static size_t expect_folder(const char *name, bool unknown)
{
    char dir[4096], path[8192];
    snprintf(dir, sizeof dir, "%s", golden(name));
    DIR *list = opendir(dir);
    size_t n = 0;
    ck_assert_ptr_nonnull(list);
    for (struct dirent *e; (e = readdir(list));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        _cleanup_(reader_closep) struct reader *reader = kit_read(path, true);
        ck_assert_msg(!kit_damage(reader, NULL) == unknown, "%s", path);
        ck_assert_uint_eq(reader_n_records(reader), 18);
        n++;
    }
    closedir(list);
    return n;
}

START_TEST(wrong_outcomes_are_damage_and_lose_no_record)
{
    ck_assert_uint_eq(expect_folder("outcomes", false), 9);
    ck_assert_uint_eq(expect_folder("outcomes-unknown", true), 3);
}
END_TEST

START_TEST(a_list_says_which_rows)
{
    _cleanup_(reader_closep) struct reader *reader =
        kit_read(golden("outcomes-unknown/list.dmi"), true);
    const struct reader_outcome *o = reader_outcome_of(reader_step(reader, 1), 0);
    uint32_t n;
    ck_assert(reader_outcome_has(o, 0, &n) && n == 1);
    ck_assert(!reader_outcome_has(o, 1, &n) && n == 1);
    ck_assert(reader_outcome_has(o, 2, &n) && n == 1);
}
END_TEST

/* ------------------------------------------------------------------------- making them */

static struct dmi_table_head *head_of(uint8_t *c)
{
    return (struct dmi_table_head *)(c + sizeof(struct dmi_chunk_header));
}

static struct dmi_outcome *entry_of(uint8_t *c, int i)
{
    return (struct dmi_outcome *)(head_of(c) + 1) + i;
}

static void bad_entries(uint8_t *c)
{
    head_of(c)->n_entries = 0xffffffff;
}
static void bad_size(uint8_t *c)
{
    head_of(c)->entry_bytes = 40;
}
static void bad_strings(uint8_t *c)
{
    head_of(c)->n_string_bytes = 0x7fffffff;
}
static void bad_reserved(uint8_t *c)
{
    entry_of(c, 0)->reserved = 1;
}
static void bad_span(uint8_t *c)
{
    entry_of(c, 0)->span = 2;
}
static void bad_rows(uint8_t *c)
{
    entry_of(c, 0)->n_accepted = 4;
}
static void bad_list(uint8_t *c)
{
    entry_of(c, 0)->accepted = 0xfffffff0;
}
static void bad_list_rows(uint8_t *c)
{
    entry_of(c, 0)->accepted = 0; /* no bytes of the strings are two rows */
}
static void bad_id(uint8_t *c)
{
    entry_of(c, 2)->id_bytes = 200;
}
static void other_flags(uint8_t *c)
{
    head_of(c)->flags = 7;
    entry_of(c, 0)->flags |= 0xff00;
    entry_of(c, 2)->reason = 99;
}
/* The first entry's rows are 0 and 2, in a list after the id. */
static void other_list(uint8_t *c)
{
    static const uint32_t rows[] = { 0, 2 };
    uint32_t at = head_of(c)->n_string_bytes;
    memcpy((uint8_t *)entry_of(c, 3) + at, rows, sizeof rows);
    head_of(c)->n_string_bytes += sizeof rows;
    ((struct dmi_chunk_header *)c)->n_meta += sizeof rows;
    entry_of(c, 0)->accepted = at;
    entry_of(c, 0)->n_accepted = 2;
}
/* Entries of 56 bytes. */
static void other_size(uint8_t *c)
{
    uint8_t *first = (uint8_t *)entry_of(c, 0);
    size_t size = sizeof(struct dmi_outcome), n_text = head_of(c)->n_string_bytes;
    memmove(first + 3 * (size + 8), first + 3 * size, n_text);
    for (size_t i = 3; i-- > 0;) {
        memmove(first + i * (size + 8), first + i * size, size);
        memset(first + i * (size + 8) + size, 0xee, 8);
    }
    head_of(c)->entry_bytes += 8;
    ((struct dmi_chunk_header *)c)->n_meta += 24;
}

static const struct {
    const char *name;
    void (*make)(uint8_t *chunk);
} wrongs[] = {
    { "outcomes/entries", bad_entries },
    { "outcomes/size", bad_size },
    { "outcomes/strings", bad_strings },
    { "outcomes/reserved", bad_reserved },
    { "outcomes/span", bad_span },
    { "outcomes/rows", bad_rows },
    { "outcomes/list", bad_list },
    { "outcomes/list_rows", bad_list_rows },
    { "outcomes/id", bad_id },
    { "outcomes-unknown/flags", other_flags },
    { "outcomes-unknown/list", other_list },
    { "outcomes-unknown/size", other_size },
};

static uint64_t chunk_size(const uint8_t *chunk)
{
    struct dmi_chunk_header h;
    memcpy(&h, chunk, sizeof h);
    return sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
}

/* What comes after the outcomes, the last chunk but the footer, is cut off: the index would contradict them. */
static void write_wrong(const char *dir, const uint8_t *segment, size_t n, size_t which)
{
    uint8_t *data = calloc(1, n + 64);
    memcpy(data, segment, n);
    uint8_t *at = data + sizeof(struct dmi_segment_header);
    while (((struct dmi_chunk_header *)at)->type != DMI_CHUNK_OUTCOMES)
        at += chunk_size(at);
    memset(at + chunk_size(at), 0, (size_t)(data + n + 64 - at) - chunk_size(at));
    wrongs[which].make(at);
    struct dmi_chunk_header h;
    memcpy(&h, at, sizeof h);
    h.meta_hash = hash_bytes(at + sizeof h, h.n_meta);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(at, &h, sizeof h);
    char name[64];
    snprintf(name, sizeof name, "%s.dmi", wrongs[which].name);
    kit_store(dir, name, data, (size_t)(at - data) + chunk_size(at));
    free(data);
}

static const char *golden_target;

START_TEST(write_golden_files)
{
    char path[8192];
    static const char *const folders[] = { "ranks", "outcomes", "outcomes-unknown" };
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", golden_target, folders[i]);
        mkdir(path, 0755);
    }
    snprintf(path, sizeof path, "%s/ranks", golden_target);
    write_rank(path, 0);
    write_rank(path, 1);
    size_t n;
    snprintf(path, sizeof path, "%s/ranks/rank-0", golden_target);
    _cleanup_(freep) uint8_t *intact = kit_load(path, "seg-000000.dmi", &n);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++)
        write_wrong(golden_target, intact, n, i);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("storage_outcomes");
    TCase *tc = tcase_create("outcomes");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_files);
    } else {
        tcase_add_test(tc, an_outcome_is_refused_by_what_is_wrong_with_it);
        tcase_add_test(tc, memory_is_bounded);
        tcase_add_test(tc, outcomes_are_read_while_the_run_grows_and_when_it_is_closed);
        tcase_add_test(tc, what_could_not_be_written_is_written_later);
        tcase_add_test(tc, every_small_float_is_its_own_sum_and_ties_go_to_even);
        tcase_add_test(tc, integers_are_added_by_their_bits);
        tcase_add_test(tc, the_golden_ranks_are_joined_as_they_were);
        tcase_add_test(tc, wrong_outcomes_are_damage_and_lose_no_record);
        tcase_add_test(tc, a_list_says_which_rows);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
