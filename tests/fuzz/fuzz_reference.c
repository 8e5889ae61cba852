/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file that a run is compared with: whatever row is asked for lies in its tensor. */
#include "core/cleanup.h"
#include "read/reference.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(const struct reference_tensor *t, const char *begin, const char *end)
{
    static const int64_t positions[] = { -1, 0, 1, 5, INT64_MAX };
    const struct st_entry *e = t->entry;
    uint64_t width = 1;
    for (uint32_t d = 1; d < e->n_dims; d++)
        width *= e->dims[d];
    require(width == 0 || !e->n_dims ||
            e->n_bytes == e->dims[0] * width * dmi_dtype_bytes(e->dtype));
    require((const char *)e->data >= begin && (const char *)e->data + e->n_bytes <= end);
    for (size_t i = 0; e->n_dims && i < sizeof positions / sizeof positions[0]; i++) {
        int64_t row = reference_row(t, positions[i], i);
        require(row >= -1 && (row < 0 || (uint64_t)row < e->dims[0]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    _cleanup_(closep) int fd = memfd_create("reference", MFD_CLOEXEC);
    struct reference ref;
    struct err err = { 0 };
    char path[40];
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (reference_open(&err, path, &ref)) {
        require(err.code < 0 && *err.msg);
        return 0;
    }
    const char *begin = ref.st.map;
    for (size_t i = 0; i < ref.st.n; i++) {
        require(reference_find(&ref, ref.st.entries[i].key) == &ref.tensors[i]);
        look_at(&ref.tensors[i], begin, begin + ref.st.n_map);
    }
    reference_deinit(&ref);
    return 0;
}
