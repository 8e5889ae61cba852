/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3_64bits as xxHash has it for AVX2: this file alone is compiled with -mavx2, the library of the system is not. */
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include "storage/codec/hash_avx2.h"

#include <xxhash.h>

uint64_t hash_bytes_avx2(const void *data, size_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}
