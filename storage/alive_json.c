/* SPDX-License-Identifier: Apache-2.0 */
/* A file of its own: the capturing library holds no JSON parser. */
#include "storage/alive.h"
#include "storage/object.h"

#include <jansson.h>
#include <stdio.h>

static void copy_text(char *out, size_t n_out, const json_t *object, const char *key)
{
    snprintf(out, n_out, "%s", object_text_or(object, key, ""));
}

const struct alive_process *alive_said(const json_t *manifest, struct alive_process *out)
{
    const json_t *said = json_object_get(manifest, "process");
    *out = (struct alive_process){ .pid = object_number(manifest, "pid"),
                                   .start_ticks = object_number(said, "start_ticks"),
                                   .inode = object_number(said, "counters_inode") };
    copy_text(out->boot_id, sizeof out->boot_id, said, "boot_id");
    copy_text(out->namespaces, sizeof out->namespaces, said, "namespaces");
    return out->start_ticks ? out : NULL;
}
