/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the way out of the ring carries: bench_drain FOLDER [SECONDS]
 *
 * The library's drain and encoder (preload/context, storage) with a link to the host of a set bandwidth, and
 * no device: a thread reserves and publishes records as fast as the ring takes them, and payload is
 * what the ring was filled with once. Encoder "off" throws batches away. So the first row of a link tells what the
 * drain leaves of it, and the others what encoding and writing leave of that: by one or two encoders, on the first rung of
 * the codecs' ladder (smallest) or on that which the backlog chooses (auto). Raw bytes go to the disk past the page cache
 * where that costs less, and "synced" counts until the disk has them. First of all, what the disk
 * takes of one program that does nothing else, as `dd conv=fdatasync` writes.
 */
#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/context/workers.h"
#include "preload/session/session.h"

#include <dmi/dtype.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RING_BYTES (64u << 20)
#define RING_SLOTS 8192u
#define SECOND     1000000000ull

struct driver driver_table;

static struct {
    uint64_t bytes_a_second; /* 0: no limit */
    uint64_t free_ns;        /* drain only: when all that was asked for is carried */
    bool encode;
    bool synced; /* the run */
} wire;

/* ------------------------------------------------------------------------- in the library's place */

static CUresult set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult host_register(void *p, size_t n, unsigned flags)
{
    (void)p, (void)n, (void)flags;
    return CUDA_SUCCESS;
}

/* The bytes are there at once; the stream is not done before the link has had its time. */
static CUresult copy_to_host(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    uint64_t now = clock_mono_ns(), bps = wire.bytes_a_second;
    wire.free_ns = (wire.free_ns > now ? wire.free_ns : now) + (bps ? n * SECOND / bps : 0);
    memcpy(to, (const void *)(uintptr_t)from, n);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream stream)
{
    (void)stream;
    struct timespec at = { .tv_sec = (time_t)(wire.free_ns / SECOND),
                           .tv_nsec = (long)(wire.free_ns % SECOND) };
    while (clock_mono_ns() < wire.free_ns)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    return CUDA_SUCCESS;
}

struct run *session_run(void)
{
    return session.run;
}

/* The linker puts the first of each in the place of the library's, which is then the second. */
int __wrap_run_encode(struct run *run, const struct run_record *records, size_t n,
                      enum codec_rung rung, struct chunk **out);
int __real_run_encode(struct run *run, const struct run_record *records, size_t n,
                      enum codec_rung rung, struct chunk **out);
int __wrap_run_append_chunk(struct run *run, struct chunk *chunk);
int __real_run_append_chunk(struct run *run, struct chunk *chunk);

int __wrap_run_encode(struct run *run, const struct run_record *records, size_t n,
                      enum codec_rung rung, struct chunk **out)
{
    *out = NULL;
    return wire.encode ? __real_run_encode(run, records, n, rung, out) : 0;
}

int __wrap_run_append_chunk(struct run *run, struct chunk *chunk)
{
    return chunk ? __real_run_append_chunk(run, chunk) : 0;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench_drain: %s\n", what);
    exit(2);
}

/* ------------------------------------------------------------------------- data */

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float normal(uint64_t *state)
{
    double u = ((double)(next(state) >> 11) + 0.5) / 9007199254740992.0;
    double v = (double)(next(state) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* What activations look like to the codec; u8: bytes that do not shrink. 4 MiB of them, over and over. */
static void fill(unsigned char *to, uint32_t dtype)
{
    const size_t n = 4u << 20;
    uint64_t state = 1;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = (uint32_t)next(&state);
        float x[2] = { normal(&state), normal(&state) };
        if (dtype == DMI_DTYPE_F32) {
            memcpy(&bits, x, sizeof bits);
        } else if (dtype == DMI_DTYPE_BF16) {
            uint32_t pair[2];
            memcpy(pair, x, sizeof pair);
            bits = pair[0] >> 16 | (pair[1] & 0xffff0000u);
        }
        memcpy(to + i, &bits, sizeof bits);
    }
    for (size_t at = n; at < RING_BYTES; at += n)
        memcpy(to + at, to, n);
}

/* ------------------------------------------------------------------------- one measurement */

static struct run *open_run(const char *folder)
{
    struct dmi_site site = {
        .name = "x", .kernel = "x", .dtype = DMI_DTYPE_F32, .scale = 1, .expect = -1
    };
    struct run_options options = { .out_dir = folder,
                                   .spec_path = "bench",
                                   .spec_text = "",
                                   .library_version = "bench",
                                   .sites = &site,
                                   .n_sites = 1,
                                   .durability = wire.synced ? RUN_DURABILITY_INTERVAL
                                                             : RUN_DURABILITY_NONE };
    struct err err = { 0 };
    struct run *run;
    if (run_open(&err, &options, &run))
        die(err.msg);
    return run;
}

/* Return: bytes of its files. */
static uint64_t remove_run(const char *path)
{
    struct dirent *entry;
    uint64_t n_bytes = 0;
    struct stat st;
    DIR *dir = opendir(path);
    while (dir && (entry = readdir(dir)))
        if (!fstatat(dirfd(dir), entry->d_name, &st, 0) && S_ISREG(st.st_mode)) {
            n_bytes += (uint64_t)st.st_size;
            unlinkat(dirfd(dir), entry->d_name, 0);
        }
    if (dir)
        closedir(dir);
    rmdir(path);
    return n_bytes;
}

static struct context *make_context(void)
{
    static struct context context;
    static struct dmi_desc desc[RING_SLOTS];
    static struct ring_slot slots[RING_SLOTS];
    unsigned char *payload = malloc(RING_BYTES);
    pthread_mutex_init(&context.lock, NULL);
    context.state = CONTEXT_READY;
    context.payload = (CUdeviceptr)(uintptr_t)payload;
    if (!payload || ring_init(&context.ring, desc, slots, RING_SLOTS, RING_BYTES))
        die("no ring");
    return &context;
}

static bool publish_one(struct context *a, uint64_t seq, uint32_t dtype, uint32_t n_bytes)
{
    uint64_t index, payload;
    pthread_mutex_lock(&a->lock);
    int r = ring_reserve(&a->ring, seq, 0, n_bytes, &index, &payload);
    if (!r)
        *(struct record_note *)ring_user(&a->ring, index) =
            (struct record_note){ .dtype = dtype,
                                  .layer = -1,
                                  .n_dims = 1,
                                  .dims = { n_bytes / dmi_dtype_bytes(dtype) },
                                  .kept = ROW_LISTS_NONE };
    pthread_mutex_unlock(&a->lock);
    if (r)
        return false;
    struct dmi_desc record = { .ready = seq, .payload = payload, .n_bytes = n_bytes };
    ring_publish(ring_desc(&a->ring, index), &record);
    return true;
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

struct result {
    double bytes_a_second; /* that come out */
    double cpu_a_byte;     /* seconds of all threads, the link's copy included */
    double ratio;          /* raw bytes a byte of the run's files */
};

static struct result measure(struct context *a, const char *folder, uint32_t dtype,
                             uint32_t n_bytes, double seconds)
{
    static uint64_t seq = DMI_SEQ_FIRST;
    uint64_t bytes = 0, start;
    struct timespec pause = { .tv_nsec = 100000 };
    session.run = open_run(folder);
    session.counters = run_counters(session.run);
    wire.free_ns = 0;
    if (workers_start(a))
        die("no drain");
    double cpu = cpu_seconds();
    for (start = clock_mono_ns(); (double)(clock_mono_ns() - start) < seconds * 1e9;) {
        if (publish_one(a, seq, dtype, n_bytes)) {
            seq++;
            bytes += n_bytes;
        } else {
            nanosleep(&pause, NULL);
        }
    }
    if (!workers_wait(a, a->ring.head_slot, 60 * SECOND))
        die("the drain stands still");
    double spent = (double)(clock_mono_ns() - start) / 1e9;
    char path[4096];
    snprintf(path, sizeof path, "%s", run_path(session.run));
    if (!workers_stop(a, 10 * SECOND, DMI_DROP_EXIT_TIMEOUT) ||
        session.counters->sites[0].captured.bytes != bytes || run_close(session.run))
        die("records are missing");
    if (wire.synced)
        spent = (double)(clock_mono_ns() - start) / 1e9;
    cpu = cpu_seconds() - cpu;
    workers_free(a);
    a->ladder = (struct ladder){ 0 };
    return (struct result){ .bytes_a_second = (double)bytes / spent,
                            .cpu_a_byte = cpu / (double)bytes,
                            .ratio = (double)bytes / (double)remove_run(path) };
}

#define DISK_BYTES (512u << 20)

/* As dd does: a MiB a call, and one fdatasync(). */
static void measure_disk(const char *folder, const unsigned char *data)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/disk", folder);
    mkdir(folder, 0700);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    double cpu = cpu_seconds();
    uint64_t start = clock_mono_ns();
    for (size_t at = 0; at < DISK_BYTES; at += 1u << 20)
        if (pwrite(fd, data, 1u << 20, (off_t)at) != 1 << 20)
            die("the disk is full");
    if (fdatasync(fd))
        die("the disk cannot be synced");
    double spent = (double)(clock_mono_ns() - start) / 1e9;
    printf("disk: %.2f GB/s written and synced, %.2f CPU s/GB\n", DISK_BYTES / spent / 1e9,
           (cpu_seconds() - cpu) * 1e9 / DISK_BYTES);
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        bool encode;
        uint32_t dtype;
        uint32_t encoders, rung; /* as in the session: 0: the backlog chooses */
        bool synced;
    } ways[] = {
        { "encoder off", false, DMI_DTYPE_U8, 1, 0 },
        { "raw", true, DMI_DTYPE_U8, 1, 0 },
        { "raw synced", true, DMI_DTYPE_U8, 1, 0, .synced = true },
        { "f32 1 smallest", true, DMI_DTYPE_F32, 1, 1 + CODEC_SMALLEST },
        { "f32 2 smallest", true, DMI_DTYPE_F32, 2, 1 + CODEC_SMALLEST },
        { "f32 1 auto", true, DMI_DTYPE_F32, 1, 0 },
        { "f32 2 auto", true, DMI_DTYPE_F32, 2, 0 },
        { "bf16 1 smallest", true, DMI_DTYPE_BF16, 1, 1 + CODEC_SMALLEST },
        { "bf16 2 smallest", true, DMI_DTYPE_BF16, 2, 1 + CODEC_SMALLEST },
        { "bf16 1 auto", true, DMI_DTYPE_BF16, 1, 0 },
        { "bf16 2 auto", true, DMI_DTYPE_BF16, 2, 0 },
    };
    static const uint64_t links[] = { 250000000, 1000000000, 4000000000, 0 };
    static const uint32_t sizes[] = { 1u << 20, 16u << 10 };
    double seconds = argc > 2 ? atof(argv[2]) : 0.35;
    if (argc < 2)
        die("a folder to write to was expected");
    log_init("stderr");
    driver_table.cuCtxSetCurrent = set_current;
    driver_table.cuMemHostRegister_v2 = host_register;
    driver_table.cuMemcpyDtoHAsync_v2 = copy_to_host;
    driver_table.cuStreamSynchronize = synchronize;
    struct context *a = make_context();
    fill((unsigned char *)(uintptr_t)a->payload, DMI_DTYPE_U8);
    measure_disk(argv[1], (unsigned char *)(uintptr_t)a->payload);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        printf("records of %u KiB\n%-10s %-16s %6s %7s %9s %6s\n", sizes[s] >> 10, "link", "way",
               "GB/s", "of link", "CPU s/GB", "ratio");
        for (size_t l = 0; l < sizeof links / sizeof *links; l++)
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                fill((unsigned char *)(uintptr_t)a->payload, ways[w].dtype);
                wire.bytes_a_second = links[l];
                wire.encode = ways[w].encode;
                wire.synced = ways[w].synced;
                session.encoders = ways[w].encoders;
                session.rung = ways[w].rung;
                struct result r = measure(a, argv[1], ways[w].dtype, sizes[s], seconds);
                char link[16] = "no limit", share[16] = "";
                if (links[l]) {
                    snprintf(link, sizeof link, "%.2f GB/s", (double)links[l] / 1e9);
                    snprintf(share, sizeof share, "%.2f", r.bytes_a_second / (double)links[l]);
                }
                printf("%-10s %-16s %6.2f %7s %9.2f %6.2f\n", link, ways[w].name,
                       r.bytes_a_second / 1e9, share, r.cpu_a_byte * 1e9,
                       ways[w].encode ? r.ratio : 1);
                fflush(stdout);
            }
    }
    return 0;
}
