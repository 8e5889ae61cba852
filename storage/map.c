/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/map.h"

#include "storage/codec/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void map_deinit(struct map *map)
{
    free(map->slots);
    *map = (struct map){ 0 };
}

/* The slot of a key, or the free one where it belongs. */
static struct map_slot *find(const struct map *map, const void *key, size_t n_key, uint64_t hash)
{
    size_t at = hash & (map->n_slots - 1);
    for (;; at = (at + 1) & (map->n_slots - 1)) {
        struct map_slot *s = &map->slots[at];
        if (!s->key || (s->hash == hash && s->n_key == n_key && !memcmp(s->key, key, n_key)))
            return s;
    }
}

static int grow(struct map *map)
{
    struct map more = { .n_slots = map->n_slots ? 2 * map->n_slots : 64, .n = map->n };
    more.slots = calloc(more.n_slots, sizeof *more.slots);
    if (!more.slots)
        return -ENOMEM;
    for (size_t i = 0; i < map->n_slots; i++) {
        const struct map_slot *s = &map->slots[i];
        if (s->key)
            *find(&more, s->key, s->n_key, s->hash) = *s;
    }
    free(map->slots);
    *map = more;
    return 0;
}

size_t *map_at(struct map *map, const void *key, size_t n_key)
{
    if (2 * map->n >= map->n_slots && grow(map))
        return NULL;
    uint64_t hash = hash_bytes(key, n_key);
    struct map_slot *s = find(map, key, n_key, hash);
    if (!s->key) {
        *s = (struct map_slot){ key, n_key, hash, MAP_NONE };
        map->n++;
    }
    return &s->value;
}

size_t map_get(const struct map *map, const void *key, size_t n_key)
{
    if (!map->n_slots)
        return MAP_NONE;
    const struct map_slot *s = find(map, key, n_key, hash_bytes(key, n_key));
    return s->key ? s->value : MAP_NONE;
}
