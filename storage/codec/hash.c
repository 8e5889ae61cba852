/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec/hash.h"

#include "storage/codec/cpu.h"
#include "storage/codec/hash_avx2.h"

#include <string.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t n_bytes)
{
#ifdef __x86_64__
    if (has_avx2())
        return hash_bytes_avx2(data, n_bytes);
#endif
    return hash_bytes_portable(data, n_bytes);
}

uint64_t hash_bytes_portable(const void *data, size_t n_bytes)
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

struct hash_stream *hash_start(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state)
        XXH3_64bits_reset(state);
    return (struct hash_stream *)state;
}

void hash_add(struct hash_stream *stream, const void *data, size_t n_bytes)
{
    XXH3_64bits_update((XXH3_state_t *)stream, data, n_bytes);
}

uint64_t hash_end(struct hash_stream *stream)
{
    uint64_t hash = XXH3_64bits_digest((XXH3_state_t *)stream);
    XXH3_freeState((XXH3_state_t *)stream);
    return hash;
}
