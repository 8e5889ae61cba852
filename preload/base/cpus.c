/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/cpus.h"

static cpu_set_t given; /* empty: not known, or more than fit */

__attribute__((constructor)) static void note(void)
{
    if (sched_getaffinity(0, sizeof given, &given))
        CPU_ZERO(&given);
}

uint32_t cpus_given(void)
{
    int n = CPU_COUNT(&given);
    return n > 0 ? (uint32_t)n : 1;
}

bool cpus_beside(cpu_set_t *out)
{
    cpu_set_t here, both;
    if (sched_getaffinity(0, sizeof here, &here))
        return false;
    CPU_AND(&both, &given, &here);
    CPU_XOR(out, &given, &both);
    return CPU_COUNT(out) > 0;
}
