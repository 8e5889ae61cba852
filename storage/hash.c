/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}

uint64_t hash_two(const void *a, size_t n_a, const void *b, size_t n_b)
{
    unsigned char both[128];
    if (n_a > 64 || n_b > 64)
        return 0;
    memcpy(both, a, n_a);
    memcpy(both + n_a, b, n_b);
    return XXH3_64bits(both, n_a + n_b);
}
