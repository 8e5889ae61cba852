/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dmi_tap() that prints what it is given, for programs that are preloaded with it. The struct is written down here once
 * more, as the ABI: what docs promise, not what a header of today says.
 */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct dmi_tap {
    uint32_t size, version;
    const char *name;
    const void *data;
    void *stream;
    int32_t layer, n_layers;
    uint32_t dtype, n_dims, row_dims, flags;
    uint64_t count[4];
    int64_t stride[4];
};
static_assert(sizeof(struct dmi_tap) == 120 && offsetof(struct dmi_tap, layer) == 32 &&
                  offsetof(struct dmi_tap, count) == 56 && offsetof(struct dmi_tap, stride) == 88,
              "version 1");

__attribute__((visibility("default"))) int dmi_tap(const struct dmi_tap *tap);

int dmi_tap(const struct dmi_tap *tap)
{
    printf("%u %u %s %" PRIxPTR " %" PRIxPTR " layer %d of %d dtype %u rows %u flags %u", tap->size,
           tap->version, tap->name, (uintptr_t)tap->data, (uintptr_t)tap->stream, tap->layer,
           tap->n_layers, tap->dtype, tap->row_dims, tap->flags);
    for (uint32_t d = 0; d < tap->n_dims; d++)
        printf(" %" PRIu64 "/%" PRId64, tap->count[d], tap->stride[d]);
    printf("\n");
    fflush(stdout);
    return 7;
}
