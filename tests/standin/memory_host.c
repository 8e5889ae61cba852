/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_host.c - which host memory kernels may touch
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* The pinned ranges once more, for kernels, which must not wait for driver.lock. */
static struct host_range {
    uint64_t first, end;
} * host_ranges;
static size_t n_host_ranges, cap_host_ranges;
static atomic_ulong host_generation = 1;
static pthread_rwlock_t host_lock = PTHREAD_RWLOCK_INITIALIZER;

bool host_range_add(uint64_t first, uint64_t end)
{
    size_t i;

    pthread_rwlock_wrlock(&host_lock);
    if (n_host_ranges == cap_host_ranges) {
        size_t cap = cap_host_ranges ? 2 * cap_host_ranges : 64;
        struct host_range *grown = realloc(host_ranges, cap * sizeof(*grown));

        if (!grown) {
            pthread_rwlock_unlock(&host_lock);
            return false;
        }
        host_ranges = grown;
        cap_host_ranges = cap;
    }
    for (i = n_host_ranges; i > 0 && host_ranges[i - 1].first > first; i--)
        host_ranges[i] = host_ranges[i - 1];
    host_ranges[i] = (struct host_range){ first, end };
    n_host_ranges++;
    atomic_fetch_add(&host_generation, 1);
    pthread_rwlock_unlock(&host_lock);
    return true;
}

void host_range_remove(uint64_t first)
{
    size_t i = 0;

    pthread_rwlock_wrlock(&host_lock);
    while (i < n_host_ranges && host_ranges[i].first != first)
        i++;
    if (i < n_host_ranges) {
        memmove(host_ranges + i, host_ranges + i + 1,
                (n_host_ranges - i - 1) * sizeof(*host_ranges));
        n_host_ranges--;
    }
    atomic_fetch_add(&host_generation, 1);
    pthread_rwlock_unlock(&host_lock);
}

bool memory_host_ok(uint64_t address, size_t n)
{
    static _Thread_local struct host_range last __attribute__((tls_model("initial-exec")));
    static _Thread_local unsigned long last_generation __attribute__((tls_model("initial-exec")));
    bool ok = false;
    size_t lo = 0, hi;

    if (last_generation == atomic_load_explicit(&host_generation, memory_order_acquire) &&
        address >= last.first && address + n <= last.end)
        return true;
    pthread_rwlock_rdlock(&host_lock);
    hi = n_host_ranges;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (host_ranges[mid].end <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < n_host_ranges && host_ranges[lo].first <= address &&
        address + n <= host_ranges[lo].end) {
        last = host_ranges[lo];
        last_generation = atomic_load(&host_generation);
        ok = true;
    }
    pthread_rwlock_unlock(&host_lock);
    return ok;
}
