/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/host.h"

#include "preload/context/memory.h"

#include <errno.h>
#include <unistd.h>

/* Memory of the machine that nobody uses, in bytes; 0: the system does not say. */
static uint64_t free_bytes(void)
{
    long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

int host_init(struct err *err, struct context *c)
{
    uint32_t n_slots = memory_slots();
    uint64_t n_bytes = memory_payload_bytes(free_bytes());
    size_t n_before = memory_map_bytes(n_slots);
    c->device = CONTEXT_NO_DEVICE;
    c->n_desc_map = n_before + n_bytes;
    c->desc_map = memory_map(c->n_desc_map);
    if (!c->desc_map)
        return err_set(err, -ENOMEM, "no host memory for a ring of %llu bytes",
                       (unsigned long long)n_bytes);
    c->desc_device = (CUdeviceptr)(uintptr_t)c->desc_map;
    c->payload = c->desc_device + n_before;
    int r = memory_init(err, c, n_slots, n_bytes);
    if (!r)
        memory_init_edits(c);
    return r;
}

void host_forget(struct context *c)
{
    memory_forget(c, true);
}
