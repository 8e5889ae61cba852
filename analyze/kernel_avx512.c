/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for AVX-512: this file alone is compiled with it. */
#define VECTOR      16
#define KERNEL      kernel_avx512
#define KERNEL_NAME "avx512"
#include "analyze/kernel_body.h"
