/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/kernels.h"

#include "core/cleanup.h"
#include "core/regular.h"
#include "core/whole.h"
#include "core/words.h"
#include "cupti/cubin.h"
#include "tools/sites/printable.h"
#include "tools/sites/recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* @more: they follow something else. */
static void put_params(bool more, const struct dmi_recording_param *params, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct dmi_recording_param p;
        memcpy(&p, params + i, sizeof p);
        printf("%s arg[%u] %u at %u", i || more ? "," : "", i, p.size, p.offset);
    }
    putchar('\n');
}

/* ------------------------------------------------------------------------- of a recording */

static void put_recording(const struct recording *rec)
{
    for (size_t k = 0; k < rec->n_kernels; k++) {
        const struct rec_kernel *kernel = &rec->kernels[k];
        size_t n = 0;
        for (size_t l = 0; l < rec->n_launches; l++)
            n += rec->launches[l].head.kernel == k;
        printf("%s: %zu %s,", kernel->name, n, word_for(n, "launch", "launches"));
        if (kernel->n_params == DMI_RECORDING_NO_LAYOUT)
            puts(" parameters not known");
        else
            put_params(false, kernel->params, kernel->n_params);
    }
}

/* ------------------------------------------------------------------------- of machine code */

static void put_image(void *ctx, uint32_t arch)
{
    (void)ctx;
    if (arch)
        printf("sm_%u\n", arch);
}

static void put_usage(const struct cubin_kernel *k)
{
    if (k->registers == CUBIN_UNKNOWN)
        printf(" registers not known");
    else
        printf(" %u registers", k->registers);
    if (k->shared)
        printf(", shared %llu", (unsigned long long)k->shared);
    if (k->local && k->local != CUBIN_UNKNOWN)
        printf(", local %u", k->local);
    for (uint32_t i = 0; i < CUBIN_BANKS; i++)
        if (k->constant[i])
            printf(", constant[%u] %llu", i, (unsigned long long)k->constant[i]);
}

static void put_kernel(void *ctx, const struct cubin_kernel *k)
{
    _cleanup_(freep) char *own = printable_name(strdup(k->name));
    (void)ctx;
    printf("%s:", own ? own : "?");
    put_usage(k);
    put_params(true, k->params, k->n_params);
}

static int put_machine_code(struct err *err, const char *path)
{
    static const struct cubin_sink sink = { .image = put_image, .kernel = put_kernel };
    uint64_t n;
    void *map = regular_map(err, path, &n);
    if (!map)
        return err->code;
    int r = cubin_read(err, map, n, &sink);
    munmap(map, n);
    return r ? err_prefix(err, "%s", path) : 0;
}

int kernels(struct err *err, const char *path)
{
    struct recording rec;
    if (!recording_is(path))
        return put_machine_code(err, path);
    int r = recording_open(err, path, &rec);
    if (!r) {
        put_recording(&rec);
        recording_deinit(&rec);
    }
    return r;
}
