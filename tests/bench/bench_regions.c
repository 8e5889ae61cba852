/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a look-up of memory costs: bench_regions [ROUNDS]
 *
 * The library's own table (preload/capture/regions.c), without driver and launches. So many pieces of one segment beside as many
 * allocations, in the same run; a look-up in a piece follows the run to its end, as for a paged cache. Rounds of
 * both alternate; the median is printed, in CPU time of the thread.
 */
#include "preload/capture/regions.h"

#include "preload/session/session.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

#define PIECE     (2ull << 20)
#define PIECES    0x700000000000ull
#define PLAIN     0x600000000000ull
#define SHARED    0x500000000000ull
#define N_EXPORTS 100000u

enum { LOOK_UPS = 5000 };

/* of the session: there is no run */
struct run *session_run(void)
{
    return NULL;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    (void)run, (void)site, (void)reason, (void)sentence;
}

static uint64_t next_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

/* Pieces lie side by side; allocations have gaps between them. */
static uint64_t address(uint64_t base, uint64_t i)
{
    return base + i * (base == PIECES ? PIECE : 2 * PIECE);
}

static void fill(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct memory_range range = { .base = address(PLAIN, i), .size = PIECE };
        regions_mapped(address(PIECES, i), PIECE, 1);
        regions_found(&range, regions_moment());
    }
    regions_permit(PIECES, n * PIECE, 1, 0);
}

static void end(uint64_t base, uint64_t n_bytes)
{
    regions_ended(base, n_bytes, regions_end(base, n_bytes), true);
}

static double look_ups(uint64_t base, uint64_t n)
{
    struct memory_range range;
    uint64_t sum = 0, start = bench_thread_ns();
    for (int i = 0; i < LOOK_UPS; i++)
        sum += regions_find(address(base, next_random() % n), UINT64_MAX, 0, &range) + range.size;
    double ns = (double)(bench_thread_ns() - start) / LOOK_UPS;
    if (!sum)
        bench_die("a look-up", 0);
    return ns;
}

/* Memory of which nothing is known, as it is freed in every step. */
static double frees(void)
{
    uint64_t start = bench_thread_ns();
    for (int i = 0; i < LOOK_UPS; i++)
        end(SHARED - PIECE, 1);
    return (double)(bench_thread_ns() - start) / LOOK_UPS;
}

static void print(const char *what, uint64_t n, int rounds)
{
    double *plain = calloc((size_t)rounds, sizeof *plain),
           *pieces = calloc((size_t)rounds, sizeof *pieces),
           *freed = calloc((size_t)rounds, sizeof *freed);
    if (!plain || !pieces || !freed)
        bench_die("calloc", 0);
    for (int i = 0; i < rounds; i++) {
        plain[i] = look_ups(PLAIN, n);
        pieces[i] = look_ups(PIECES, n);
        freed[i] = frees();
    }
    printf("%6llu %-24s look-up in an allocation %6.1f ns, in a piece %6.1f ns; a free of other "
           "memory %6.1f ns\n",
           (unsigned long long)n, what, bench_median(plain, rounds), bench_median(pieces, rounds),
           bench_median(freed, rounds));
    free(plain);
    free(pieces);
    free(freed);
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = { 1, 10, 1000, 4000, 10000 };
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    session.armed = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill(sizes[i]);
        print("of each", sizes[i], rounds);
        end(PIECES, sizes[i] * PIECE);
        end(PLAIN, 2 * sizes[i] * PIECE);
    }
    for (uint64_t i = 0; i < N_EXPORTS; i++)
        regions_share(address(SHARED, i), PIECE);
    for (uint64_t i = 0; i < N_EXPORTS; i++)
        regions_share_handle(i + 2);
    fill(1);
    print("after 100,000 exports", 1, rounds);
    fill(4000);
    print("after 100,000 exports", 4000, rounds);
    return 0;
}
