/* SPDX-License-Identifier: Apache-2.0 */
/* The loops over tiles for AVX2: this file alone is compiled with it. */
#define VECTOR      4
#define KERNEL      tile_avx2
#define KERNEL_NAME "avx2"
#include "analyze/tile_body.h"
