/* SPDX-License-Identifier: Apache-2.0 */
/* The loops over tiles for AVX-512: this file alone is compiled with it. */
#define VECTOR      8
#define KERNEL      tile_avx512
#define KERNEL_NAME "avx512"
#include "analyze/tile_body.h"
