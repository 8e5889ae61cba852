/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from byte strings to numbers, so that what is looked up by name takes time in proportion to its number.
 * Keys are borrowed for as long as the map lives. Not locked: the owner's thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MAP_NONE SIZE_MAX

struct map_slot {
    const void *key; /* NULL: free */
    size_t n_key;
    uint64_t hash;
    size_t value;
};

struct map {
    struct map_slot *slots; /* a power of two of them */
    size_t n_slots, n;
};

/* Accepts a zeroed map, and leaves one. */
void map_deinit(struct map *map);

/**
 * map_at() - the value of a key, which is added with MAP_NONE if it is not there
 * @key: not NULL; borrowed
 * Return: borrowed until the next call; NULL: no memory.
 */
size_t *map_at(struct map *map, const void *key, size_t n_key);

/* Return: the value of a key; MAP_NONE where there is none. */
size_t map_get(const struct map *map, const void *key, size_t n_key);
