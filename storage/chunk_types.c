/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/chunk_types.h"

#include <stddef.h>

static const struct chunk_type {
    const char *name;
    uint32_t of;
    bool payload;
} types[] = {
#define CHUNK_TYPE(type, of, name, payload, ...)                                                   \
    [DMI_CHUNK_##type] = { name, DMI_CHUNK_##of, payload },
#include "storage/chunk_types.def"
};

static const struct chunk_type *find(uint32_t type)
{
    static const struct chunk_type none = { .name = "unknown", .payload = true };
    return type < sizeof types / sizeof types[0] && types[type].name ? &types[type] : &none;
}

bool chunk_type_known(uint32_t type)
{
    return chunk_type_of(type) != 0;
}

const char *chunk_type_name(uint32_t type)
{
    return find(type)->name;
}

uint32_t chunk_type_of(uint32_t type)
{
    return find(type)->of;
}

bool chunk_type_repeats(uint32_t type)
{
    return chunk_type_known(type) && chunk_type_of(type) != type && type != DMI_CHUNK_STEPS_PACKED;
}

bool chunk_type_has_payload(uint32_t type)
{
    return find(type)->payload;
}
