/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer. pwritev() is this program's own, so that a test can make the n-th byte the last that
 * fits, split writes, or fail them.
 */
#include "core/atomic.h"
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/folder.h"
#include "storage/text.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    int64_t room;   /* bytes until the disk is full; -1: no end */
    int error;      /* then */
    size_t most;    /* bytes a call, 0: all */
    int interrupts; /* every other call fails with EINTR */
    int calls;
} disk = { .room = -1, .error = ENOSPC };

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    if (disk.interrupts && atomic_add_relaxed(&disk.calls, 1) % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    ssize_t done = 0;
    for (int i = 0; i < n; i++) {
        size_t part = pieces[i].iov_len;
        if (disk.most && part > disk.most - (size_t)done)
            part = disk.most - (size_t)done;
        if (disk.room >= 0 && part > (size_t)disk.room)
            part = (size_t)disk.room;
        if (!part)
            break;
        ssize_t w = pwrite(fd, pieces[i].iov_base, part, offset + done);
        if (w < 0)
            return done ? done : w;
        done += w;
        if (disk.room >= 0)
            disk.room -= w;
        if ((size_t)w < pieces[i].iov_len)
            break;
    }
    if (!done && disk.room == 0) {
        errno = disk.error;
        return -1;
    }
    return done;
}

static char *out;

static void setup(void)
{
    disk.room = -1;
    disk.error = ENOSPC;
    disk.most = 0;
    disk.interrupts = 0;
    out = kit_folder();
}

static void teardown(void)
{
    kit_remove(out);
    free(out);
}

static void expect_sound(uint32_t width, size_t n_records)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first ? first->file : "",
                  first ? first->text : "");
    ck_assert_uint_eq(reader_n_records(reader), n_records);
    ck_assert(kit_holds(reader, width));
    ck_assert_int_eq(reader_run(reader)->state, READER_CLOSED);
}

START_TEST(what_was_written_comes_back)
{
    struct run *run = kit_open(out, 0);
    run_problem(run, "f32", "no_match", "a sentence with \"quotes\" and \x01");
    run_problem(run, "f32", "no_match", "a sentence with \"quotes\" and \x01");
    for (uint64_t i = 0; i < 20; i++)
        ck_assert_int_eq(kit_forward(run, i, 96), 0);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(96, 40);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    ck_assert_uint_eq(reader_n_sites(reader), DMI_DTYPE_COUNT);
    const struct dmi_site *logits = reader_site(reader, DMI_DTYPE_COUNT - 1);
    ck_assert_str_eq(logits->name, "logits");
    ck_assert_double_eq(logits->scale, 1e12);
    ck_assert_uint_eq(logits->row, 1);
    ck_assert_str_eq(logits->kind, "decode");
    ck_assert_str_eq(reader_run(reader)->model, "kit \"quoted\" \xef\xbf\xbd");
    ck_assert_uint_eq(reader_run(reader)->n_problems, 1);
    ck_assert_uint_eq(reader_run(reader)->problems[0].times, 2);
    const struct reader_step *step = reader_step(reader, 3);
    size_t n;
    ck_assert_uint_eq(step->entry->n_spans, 2);
    ck_assert_mem_eq(reader_span_id(step, 0, &n), "../../x\n", 8);
    ck_assert_uint_eq(n, 8);
    ck_assert_int_eq(step->spans[0].first_position, 9);
}
END_TEST

START_TEST(all_dtypes_and_dims_share_a_chunk)
{
    static const uint32_t dims[4][4] = { { 5 }, { 3, 7 }, { 2, 3, 5 }, { 2, 3, 4, 5 } };
    struct run_record records[(DMI_DTYPE_COUNT - 1) * 4];
    size_t n = 0;
    for (uint32_t dtype = 1; dtype < DMI_DTYPE_COUNT; dtype++)
        for (uint32_t d = 0; d < 4; d++) {
            struct run_record *r = &records[n];
            size_t elements = 1;
            *r = (struct run_record){ .site = dtype - 1,
                                      .layer = (int32_t)d,
                                      .dtype = dtype,
                                      .launch = 100 + n,
                                      .step = UINT64_MAX,
                                      .n_dims = d + 1 };
            for (uint32_t k = 0; k <= d; k++)
                elements *= r->dims[k] = dims[d][k];
            r->n_bytes = elements * dmi_dtype_bytes(dtype);
            void *data = malloc(r->n_bytes);
            kit_fill(data, dtype, elements, n++);
            r->data = data;
        }
    struct run *run = kit_open(out, 0);
    ck_assert_int_eq(run_append(run, records, n), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    ck_assert_uint_eq(reader_n_records(reader), n);
    for (size_t i = 0; i < n; i++) {
        const struct reader_record *rec = reader_record(reader, i);
        struct err err = { 0 };
        char back[1024];
        ck_assert_uint_eq(rec->at.launch, 100 + i);
        ck_assert_uint_eq(rec->at.n_dims, records[i].n_dims);
        ck_assert_mem_eq(rec->at.dims, records[i].dims, sizeof rec->at.dims);
        ck_assert_ptr_null(rec->step);
        ck_assert_int_eq(reader_decode(&err, reader, rec, back), 0);
        ck_assert_mem_eq(back, records[i].data, records[i].n_bytes);
        free((void *)(uintptr_t)records[i].data);
    }
}
END_TEST

START_TEST(records_larger_than_a_block_and_empty_ones)
{
    static const size_t sizes[] = { 0, 3 * DMI_BLOCK_BYTES, 4, 2 * DMI_BLOCK_BYTES + 8, 0 };
    struct run *run = kit_open(out, 0);
    struct run_record records[5];
    for (uint32_t i = 0; i < 5; i++) {
        void *data = malloc(sizes[i] + 1);
        kit_fill(data, DMI_DTYPE_F32, sizes[i] / 4, i);
        records[i] = (struct run_record){ .site = 0,
                                          .dtype = DMI_DTYPE_F32,
                                          .launch = i,
                                          .step = UINT64_MAX,
                                          .n_dims = 1,
                                          .dims = { (uint32_t)(sizes[i] / 4) },
                                          .data = data,
                                          .n_bytes = sizes[i] };
    }
    ck_assert_int_eq(run_append(run, records, 5), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    for (uint32_t i = 5; i-- > 0;) {
        struct err err = { 0 };
        char *back = malloc(sizes[i] + 1);
        ck_assert_int_eq(reader_decode(&err, reader, reader_record(reader, i), back), 0);
        ck_assert_mem_eq(back, records[i].data, sizes[i]);
        free(back);
        free((void *)(uintptr_t)records[i].data);
    }
}
END_TEST

/* A type that readers do not know, with a payload, whose hash the header has. */
START_TEST(a_chunk_of_any_type_is_appended)
{
    struct run *run = kit_open(out, 0);
    struct chunk *chunk = calloc(1, sizeof *chunk);
    chunk_from_meta(chunk, 40000, calloc(1, 8), 3);
    chunk->payload = calloc(1, 8);
    chunk->header.n_payload = 5;
    memcpy(chunk->payload, "bytes", 5);
    ck_assert_int_eq(run_append_chunk(run, chunk), 0);
    struct text none = { 0 }, meta = { 0 };
    text_add(&meta, "metadata alone", 14);
    ck_assert_int_eq(run_append_meta(run, 40001, &none), 0);
    ck_assert_int_eq(run_append_meta(run, 40001, &meta), 0);
    ck_assert_ptr_null(meta.data);
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    ck_assert_uint_eq(reader_n_findings(reader), 2);
    ck_assert(reader_finding(reader, 0)->unknown && reader_finding(reader, 1)->unknown);
    ck_assert_uint_eq(reader_n_records(reader), 2);
}
END_TEST

START_TEST(records_that_contradict_themselves_are_refused)
{
    float data[8] = { 0 };
    const struct run_record good = { .site = 0,
                                     .dtype = DMI_DTYPE_F32,
                                     .step = UINT64_MAX,
                                     .n_dims = 2,
                                     .dims = { 2, 4 },
                                     .data = data,
                                     .n_bytes = 32 };
    struct run_record bad[7];
    for (int i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].n_bytes = 31;
    bad[1].dtype = DMI_DTYPE_COUNT;
    bad[2].n_dims = 0;
    bad[3].n_dims = 5;
    bad[4].site = 1000;
    bad[5].data = NULL;
    bad[6].dims[0] = UINT32_MAX, bad[6].dims[1] = UINT32_MAX;
    struct run *run = kit_open(out, 0);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(run_append(run, &bad[i], 1), -EINVAL);
    ck_assert_int_eq(kit_forward(run, 0, 4), 0);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(4, 2);
}
END_TEST

START_TEST(segments_rotate_and_stay_one_run)
{
    struct run *run = kit_open(out, 5000);
    for (uint64_t i = 0; i < 60; i++)
        ck_assert_int_eq(kit_forward(run, i, 64), 0);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(64, 120);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    ck_assert_uint_gt(reader_run(reader)->n_segments, 5);
}
END_TEST

START_TEST(files_are_for_their_owner_alone)
{
    umask(0);
    struct run *run = kit_open(out, 0);
    struct stat st;
    ck_assert_int_eq(stat(run_path(run), &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0700);
    static const char *const names[] = { "manifest.json", "counters", "spec.yaml",
                                         "seg-000000.dmi" };
    for (int i = 0; i < 4; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", run_path(run), names[i]);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 0777, 0600);
    }
    ck_assert_int_eq(run_close(run), 0);
}
END_TEST

START_TEST(a_full_disk_drops_a_chunk_and_no_more)
{
    struct run *run = kit_open(out, 0);
    ck_assert_int_eq(kit_forward(run, 0, 64), 0);
    /* every number of bytes that still fits, in steps that hit all parts of a chunk */
    uint64_t number = 1;
    for (int64_t room = 0; room < 1200; room += 7) {
        disk.room = room;
        disk.error = room % 2 ? EIO : ENOSPC;
        ck_assert_int_eq(kit_forward(run, number++, 64), -disk.error);
    }
    disk.room = -1;
    ck_assert_int_eq(kit_forward(run, number, 64), 0);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(64, 4);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    ck_assert_uint_eq(reader_n_steps(reader), number + 1); /* steps wait, they are not lost */
    struct reader_account account;
    ck_assert(reader_account(reader, 0, &account));
    ck_assert_uint_eq(account.dropped.records, number - 1);
}
END_TEST

START_TEST(changes_that_a_full_disk_refuses_are_written_later)
{
    const struct run_change change = { .time_ns = 1, .launch = 2, .step = 3, .what = "off" };
    struct run *run = kit_open(out, 0);
    unsigned n = 0;
    int r;
    disk.room = 0;
    while (!(r = run_change(run, &change)))
        n++;
    ck_assert_int_eq(r, -ENOSPC); /* what waits is bounded */
    ck_assert_uint_gt(n, 1000);
    disk.room = -1;
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    ck_assert_int_eq(run_change(run, &change), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    ck_assert_uint_eq(reader_run(reader)->n_changes, n + 1);
    ck_assert_uint_eq(reader_run(reader)->changes[n].step, 3);
}
END_TEST

START_TEST(short_and_interrupted_writes_are_finished)
{
    disk.most = 100;
    disk.interrupts = 1;
    struct run *run = kit_open(out, 3000);
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_int_eq(kit_forward(run, i, 64), 0);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(64, 20);
}
END_TEST

START_TEST(a_disk_full_at_rotation_or_at_the_end_keeps_what_is_there)
{
    struct run *run = kit_open(out, 2000);
    disk.room = 12000;
    int r = 0;
    uint64_t number = 0;
    while (!r && number < 100)
        r = kit_forward(run, number++, 64);
    ck_assert_int_eq(r, -ENOSPC);
    ck_assert_int_eq(run_close(run), -ENOSPC);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_n_records(reader), 2 * (number - 1));
    ck_assert(kit_holds(reader, 64));
}
END_TEST

START_TEST(nothing_is_left_of_a_run_that_could_not_be_opened)
{
    _cleanup_(freep) char *fresh = NULL;
    ck_assert_int_gt(asprintf(&fresh, "%s/fresh", out), 0);
    struct dmi_site site = { .name = "q", .dtype = DMI_DTYPE_F32, .scale = 1 };
    struct run_options options = { .out_dir = fresh, .sites = &site, .n_sites = 1 };
    for (int64_t room = 0; room < 2000; room += 13) {
        struct err err = { 0 };
        struct run *run = NULL;
        disk.room = room;
        int r = run_open(&err, &options, &run);
        disk.room = -1;
        if (!r) {
            run_close(run);
            ck_assert_int_gt(room, 1000);
            return;
        }
        ck_assert_int_eq(r, -ENOSPC);
        ck_assert_ptr_nonnull(strstr(err.msg, fresh));
        ck_assert_int_ne(access(fresh, F_OK), 0);
    }
}
END_TEST

START_TEST(a_file_size_limit_is_an_error_and_no_signal)
{
    struct run *run = kit_open(out, 0);
    struct rlimit limit = { 20000, 20000 };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int r = 0;
    for (uint64_t i = 0; !r && i < 200; i++)
        r = kit_forward(run, i, 64);
    ck_assert_int_eq(r, -EFBIG);
    run_close(run);
}
END_TEST

START_TEST(a_real_full_disk)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("dmi-test", out, "tmpfs", 0, "size=256k,mode=0700")) {
        fprintf(stderr, "a_real_full_disk: no small tmpfs can be mounted here, left out\n");
        return;
    }
    struct run *run = kit_open(out, 0);
    int r = 0;
    uint64_t n = 0;
    while (!r && n < 10000)
        r = kit_forward(run, n++, 256);
    ck_assert_int_eq(r, -ENOSPC);
    run_counters(run)->forwards = 1; /* a store to the mapping must not be a SIGBUS */
    run_close(run);
    {
        _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
        ck_assert_uint_eq(kit_damage(reader, NULL), 0);
        ck_assert_uint_eq(reader_n_records(reader), 2 * (n - 1));
    }
    umount(out);
}
END_TEST

START_TEST(a_descriptor_that_the_host_closed_or_reused_is_not_written_to)
{
    struct run *run = kit_open(out, 0);
    ck_assert_int_eq(kit_forward(run, 0, 64), 0);
    char victim_path[4096];
    snprintf(victim_path, sizeof victim_path, "%s/victim", run_path(run));
    for (int fd = 3; fd < 64; fd++) {
        char link[64], name[4096] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, name, sizeof name - 1);
        if (n > 0 && strstr(name, "seg-000000.dmi")) {
            int victim = open(victim_path, O_RDWR | O_CREAT, 0600);
            ck_assert_int_ge(dup2(victim, fd), 0);
            close(victim);
        }
    }
    ck_assert_int_eq(kit_forward(run, 1, 64), 0);
    struct stat st;
    ck_assert_int_eq(stat(victim_path, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    unlink(victim_path);
    ck_assert_int_eq(run_close(run), 0);
    expect_sound(64, 4);
}
END_TEST

/* ------------------------------------------------------------------------- several threads */

#define THREADS    4
#define PER_THREAD 50

struct job {
    struct run *run;
    uint64_t first;
};

static void *append_some(void *arg)
{
    struct job *job = arg;
    float data[64];
    for (uint64_t i = 0; i < PER_THREAD; i++) {
        kit_fill(data, DMI_DTYPE_F32, 64, job->first + i);
        struct run_record r = { .site = 0,
                                .dtype = DMI_DTYPE_F32,
                                .launch = job->first + i,
                                .step = UINT64_MAX,
                                .n_dims = 2,
                                .dims = { 1, 64 },
                                .data = data,
                                .n_bytes = sizeof data };
        if (run_append(job->run, &r, 1))
            return job;
        if (i % 10 == 0) {
            char id[24];
            snprintf(id, sizeof id, "r%u", (unsigned)job->first);
            const struct dmi_span span = { .request_id = id,
                                           .n_tokens = 2,
                                           .phase = DMI_PHASE_DRAFT };
            struct dmi_step step = { .size = sizeof step,
                                     .version = 1,
                                     .step = job->first + i,
                                     .n_rows = 2,
                                     .n_spans = 1,
                                     .spans = &span };
            if (run_step(job->run, job->first + i, &step) ||
                run_accept(job->run, id, job->first + i, 1) ||
                run_request_end(job->run, id, DMI_END_STOP))
                return job;
            run_problem(job->run, "f32", "reason", "sentence");
            run_flush(job->run);
        }
    }
    return NULL;
}

START_TEST(threads_may_append_at_the_same_time)
{
    struct run *run = kit_open(out, 20000);
    pthread_t threads[THREADS];
    struct job jobs[THREADS];
    for (uint64_t t = 0; t < THREADS; t++) {
        jobs[t] = (struct job){ run, t * PER_THREAD };
        ck_assert_int_eq(pthread_create(&threads[t], NULL, append_some, &jobs[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        void *failed;
        pthread_join(threads[t], &failed);
        ck_assert_ptr_null(failed);
    }
    struct dmi_tally *t = &run_counters(run)->sites[0].expected;
    *t = (struct dmi_tally){ THREADS * PER_THREAD, THREADS * PER_THREAD,
                             THREADS * PER_THREAD * 256 };
    run_counters(run)->sites[0].captured = *t;
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_n_records(reader), THREADS * PER_THREAD);
    ck_assert_uint_eq(reader_n_ends(reader), THREADS * ((PER_THREAD + 9) / 10));
    for (size_t i = 0; i < reader_n_steps(reader); i++)
        ck_assert_uint_eq(reader_step(reader, i)->n_outcomes, 1);
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        float data[64], should[64];
        struct err err = { 0 };
        ck_assert_uint_eq(reader_record(reader, i)->at.launch, i);
        ck_assert_int_eq(reader_decode(&err, reader, reader_record(reader, i), data), 0);
        kit_fill(should, DMI_DTYPE_F32, 64, i);
        ck_assert_mem_eq(data, should, sizeof data);
    }
}
END_TEST

START_TEST(a_reader_sees_whole_chunks_while_the_writer_writes)
{
    pid_t writer = fork();
    if (!writer) {
        struct run *run = kit_open(out, 30000);
        for (uint64_t i = 0; i < 400; i++)
            if (kit_forward(run, i, 64))
                _exit(1);
        _exit(run_close(run) ? 1 : 0);
    }
    size_t n_reads = 0, last = 0;
    int status = 0;
    bool running_seen = false;
    while (!waitpid(writer, &status, WNOHANG)) {
        struct err err = { 0 };
        struct reader *reader = NULL;
        if (reader_open(&err, out, &reader))
            continue; /* before its first segment */
        ck_assert(kit_holds(reader, 64));
        for (size_t i = 0; i < reader_n_findings(reader); i++) {
            const struct reader_finding *f = reader_finding(reader, i);
            /* a segment made between reading the manifest and the folder is no damage either */
            ck_assert_msg(!f->damage, "%s: %s", f->file, f->text);
        }
        ck_assert_uint_ge(reader_n_records(reader), last);
        last = reader_n_records(reader);
        running_seen |= reader_run(reader)->state == READER_RUNNING;
        reader_close(reader);
        n_reads++;
    }
    ck_assert_int_eq(status, 0);
    ck_assert_uint_gt(n_reads, 0);
    ck_assert(running_seen || n_reads < 3);
    expect_sound(64, 800);
}
END_TEST

/* What the link `latest` leads to; "" where there is none. */
static const char *latest(void)
{
    static char name[256];
    char path[4200];
    snprintf(path, sizeof path, "%s/latest", out);
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    return name;
}

START_TEST(the_link_to_the_latest_run_is_right_or_not_there)
{
    char link[4200], made[4200], older[4200], newer[4200];
    snprintf(link, sizeof link, "%s/latest", out);
    snprintf(made, sizeof made, "%s/.latest-%d", out, (int)getpid());
    snprintf(older, sizeof older, "%s/older", out);
    snprintf(newer, sizeof newer, "%s/newer", out);
    ck_assert(!mkdir(out, 0700) || errno == EEXIST);
    folder_link_latest(older);
    ck_assert_str_eq(latest(), "older");
    ck_assert_int_eq(symlink("killed", made), 0); /* left by a kill */
    folder_link_latest(newer);
    ck_assert_str_eq(latest(), "newer");
    ck_assert_int_eq(access(made, F_OK), -1);
    ck_assert_int_eq(mkdir(made, 0700), 0); /* in the way of any link */
    folder_link_latest(older);
    ck_assert_str_eq(latest(), "");
    ck_assert_int_eq(rmdir(made), 0);
    ck_assert_int_eq(mkdir(link, 0700), 0); /* the user's own */
    folder_link_latest(older);
    ck_assert_int_eq(rmdir(link), 0);
    close(open(link, O_CREAT | O_WRONLY, 0600));
    folder_link_latest(older);
    ck_assert_int_eq(unlink(link), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_run");
    TCase *tc = tcase_create("run");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_was_written_comes_back);
    tcase_add_test(tc, all_dtypes_and_dims_share_a_chunk);
    tcase_add_test(tc, records_larger_than_a_block_and_empty_ones);
    tcase_add_test(tc, a_chunk_of_any_type_is_appended);
    tcase_add_test(tc, records_that_contradict_themselves_are_refused);
    tcase_add_test(tc, segments_rotate_and_stay_one_run);
    tcase_add_test(tc, files_are_for_their_owner_alone);
    tcase_add_test(tc, a_full_disk_drops_a_chunk_and_no_more);
    tcase_add_test(tc, changes_that_a_full_disk_refuses_are_written_later);
    tcase_add_test(tc, short_and_interrupted_writes_are_finished);
    tcase_add_test(tc, a_disk_full_at_rotation_or_at_the_end_keeps_what_is_there);
    tcase_add_test(tc, the_link_to_the_latest_run_is_right_or_not_there);
    tcase_add_test(tc, nothing_is_left_of_a_run_that_could_not_be_opened);
    tcase_add_test(tc, a_descriptor_that_the_host_closed_or_reused_is_not_written_to);
    tcase_add_test(tc, threads_may_append_at_the_same_time);
    const char *fork_mode = getenv("CK_FORK");
    if (!fork_mode || strcmp(fork_mode, "no")) { /* these change or need a process of their own */
        tcase_add_test(tc, a_file_size_limit_is_an_error_and_no_signal);
        tcase_add_test(tc, a_real_full_disk);
        tcase_add_test(tc, a_reader_sees_whole_chunks_while_the_writer_writes);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
