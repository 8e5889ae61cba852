/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/beat.h"

#include "core/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define LITTLE 0.05 /* of the time: threads that stood still ran for no more of it */
#define QUEUED 0.25 /* of the time: a thread that wanted a CPU waited for more of it */

/* Nanoseconds for which the calling thread has waited for a CPU. Return: false: the system does not say. */
static bool queued(uint64_t *ns)
{
    char line[96];
    unsigned long long ran, waited;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    line[n > 0 ? n : 0] = 0;
    if (sscanf(line, "%llu %llu", &ran, &waited) != 2)
        return false;
    *ns = waited;
    return true;
}

/*
 * It woke late. Either it wanted a CPU and had none, or nothing of the process could want one; then no thread ran, but for what they ran before they were stopped, which came after
 * the last look and before this one was due.
 */
static bool stood_still(const struct beat *was, const struct beat *now, uint64_t nap_ns)
{
    double late = (double)(now->mono_ns - was->mono_ns) - (double)nap_ns;
    double ran = (double)(now->cpu_ns - was->cpu_ns);
    return was->known && now->known && late >= BEAT_STOPPED_NS &&
           (double)(now->queued_ns - was->queued_ns) < QUEUED * late &&
           ran <= 2 * was->rate * (double)nap_ns + LITTLE * late;
}

bool beat_look(struct beat *beat, uint64_t nap_ns, uint64_t *begin_ns, uint64_t *end_ns)
{
    struct beat was = *beat;
    beat->mono_ns = clock_mono_ns();
    beat->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    beat->known = queued(&beat->queued_ns);
    beat->rate = was.known && beat->mono_ns > was.mono_ns
                     ? (double)(beat->cpu_ns - was.cpu_ns) / (double)(beat->mono_ns - was.mono_ns)
                     : 0;
    *begin_ns = was.mono_ns + nap_ns;
    *end_ns = beat->mono_ns;
    return stood_still(&was, beat, nap_ns);
}
