/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/drain_kit.h"

#include "core/clock.h"
#include "core/log.h"
#include "preload/context/workers.h"

#include <check.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver driver_table;
struct kit kit;

/* ------------------------------------------------------------------------- run */

/* There are no steps. */
int run_commit(struct run *run)
{
    (void)run;
    return 0;
}

static void sleep_ns(long ns)
{
    struct timespec pause = { .tv_nsec = ns };
    nanosleep(&pause, NULL);
}

struct chunk {
    const struct run_record *records;
    size_t n;
};

/* Bounded: where fewer threads encode than should, the test fails, and ends. A bound of time would be over after a machine's pause. */
static void meet_others(void)
{
    for (int i = 0; i < 20000 && atomic_load_relaxed(&kit.most_encoding) < kit.meet; i++)
        kit_wait();
}

static void note_most(uint32_t now)
{
    uint32_t most = atomic_load_relaxed(&kit.most_encoding);
    while (now > most && !atomic_cas_acq_rel(&kit.most_encoding, &most, now))
        ;
}

int run_encode(struct run *run, const struct run_record *records, size_t n_records,
               enum codec_rung rung, struct chunk **out)
{
    (void)run;
    uint64_t number = atomic_add_relaxed(&kit.n_encodes, 1) + 1, seed = number;
    note_most(atomic_add_relaxed(&kit.encoding, 1) + 1);
    atomic_add_relaxed(&kit.n_rung[rung], 1);
    meet_others();
    if (rung == CODEC_SMALLEST)
        sleep_ns((long)kit.slow_ns);
    kit_nap(&seed);
    atomic_add_relaxed(&kit.encoding, (uint32_t)-1);
    *out = number == kit.fail_encode_at ? NULL : malloc(sizeof **out);
    if (!*out)
        return -ENOMEM;
    **out = (struct chunk){ records, n_records };
    return 0;
}

int run_append_chunk(struct run *run, struct chunk *chunk)
{
    (void)run;
    int r = kit_append(chunk->records, chunk->n);
    free(chunk);
    return r;
}

/* ------------------------------------------------------------------------- driver */

static CUresult fake_set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult fake_register(void *p, size_t n, unsigned flags)
{
    (void)p, (void)n, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED; /* only makes copies faster */
}

static CUresult fake_copy(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    if (atomic_add_relaxed(&kit.n_copies, 1) + 1 >= kit.fail_copy_at)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy(to, (const void *)(uintptr_t)from, n);
    return CUDA_SUCCESS;
}

static CUresult fake_synchronize(CUstream stream)
{
    (void)stream;
    return atomic_load_relaxed(&kit.n_copies) >= kit.fail_copy_at ? CUDA_ERROR_ILLEGAL_ADDRESS
                                                                  : CUDA_SUCCESS;
}

/* The sites have names, for the sentences that name them. */
static struct spec *named_sites(uint32_t n_sites)
{
    static struct spec_site sites[64];
    static struct spec spec = { .sites = sites, .path = (char *)"f" };
    ck_assert_uint_le(n_sites, sizeof sites / sizeof *sites);
    for (uint32_t i = 0; i < n_sites; i++)
        sites[i].about.name = "s";
    spec.n_sites = n_sites;
    return &spec;
}

void kit_reset(uint32_t n_sites)
{
    kit_free();
    log_init("none");
    memset(&driver_table, 0, sizeof driver_table);
    driver_table.cuCtxSetCurrent = fake_set_current;
    driver_table.cuMemHostRegister_v2 = fake_register;
    driver_table.cuMemcpyDtoHAsync_v2 = fake_copy;
    driver_table.cuStreamSynchronize = fake_synchronize;
    kit = (struct kit){ .fail_copy_at = UINT64_MAX,
                        .fail_encode_at = UINT64_MAX,
                        .n_sites = n_sites };
    session = (struct session)SESSION_INIT;
    session.spec = named_sites(n_sites);
    session.counters =
        calloc(1, sizeof *session.counters + n_sites * sizeof session.counters->sites[0]);
    session.reported = calloc(n_sites + 1, sizeof *session.reported);
    session.sentences = calloc(n_sites + 1, sizeof *session.sentences);
    ck_assert(session.counters && session.reported && session.sentences);
}

void kit_free(void)
{
    free(session.counters);
    free(session.reported);
    free(session.sentences);
    session.counters = NULL;
    session.reported = NULL;
    session.sentences = NULL;
}

/* ------------------------------------------------------------------------- in the library's place */

struct run *session_run(void)
{
    return (struct run *)&kit;
}

int run_request_shed(struct run *run, const char *request_id, uint64_t sequence)
{
    (void)run;
    (void)request_id;
    (void)sequence;
    return 0;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    (void)run, (void)site, (void)reason, (void)sentence;
}

char *run_described(struct run *run, const char *key)
{
    (void)run, (void)key;
    return NULL;
}

uint64_t kit_captured(void)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < kit.n_sites; i++)
        n += session.counters->sites[i].captured.records;
    return n;
}

uint64_t kit_dropped(enum dmi_drop reason)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < kit.n_sites; i++)
        n += session.counters->sites[i].dropped[reason].records;
    return n;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
/* gcc 12's and clang 14's ThreadSanitizer know pthread_timedjoin_np, but not this one. */
int pthread_clockjoin_np(pthread_t thread, void **value, clockid_t clock,
                         const struct timespec *end)
{
    ck_assert_int_eq(clock, CLOCK_MONOTONIC);
    uint64_t end_ns = (uint64_t)end->tv_sec * SECOND + (uint64_t)end->tv_nsec;
    end_ns = end_ns - clock_mono_ns() + clock_real_ns();
    struct timespec real = { .tv_sec = (time_t)(end_ns / SECOND),
                             .tv_nsec = (long)(end_ns % SECOND) };
    return pthread_timedjoin_np(thread, value, &real);
}
#endif

/* ------------------------------------------------------------------------- schedules */

uint64_t kit_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void kit_nap(uint64_t *state)
{
    if (kit_next(state) % 32 == 0)
        sleep_ns((long)(kit_next(state) % 100000));
    for (uint64_t n = kit_next(state) % 4; n; n--)
        sched_yield();
}

void kit_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason)
{
    if (workers_stop(context, timeout_ns, reason))
        return;
    while (!workers_ended(context))
        kit_wait();
}

void kit_wait(void)
{
    sleep_ns(20000);
}
