/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes by AVX2. Pure: any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The same values as without, sooner; for processors that have AVX2. */
uint64_t hash_bytes_avx2(const void *data, size_t n_bytes);
