/* SPDX-License-Identifier: Apache-2.0 */
/* A file of its own: the capturing library holds no JSON parser. */
#include "storage/alive.h"

#include <jansson.h>
#include <stdio.h>

static uint64_t number_of(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void copy_text(char *out, size_t n_out, const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    snprintf(out, n_out, "%s", s ? s : "");
}

const struct alive_process *alive_said(const json_t *manifest, struct alive_process *out)
{
    const json_t *said = json_object_get(manifest, "process");
    *out = (struct alive_process){ .pid = number_of(manifest, "pid"),
                                   .start_ticks = number_of(said, "start_ticks"),
                                   .inode = number_of(said, "counters_inode") };
    copy_text(out->boot_id, sizeof out->boot_id, said, "boot_id");
    copy_text(out->namespaces, sizeof out->namespaces, said, "namespaces");
    return out->start_ticks ? out : NULL;
}
