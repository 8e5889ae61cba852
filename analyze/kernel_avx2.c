/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for AVX2: this file alone is compiled with it. */
#define VECTOR      8
#define KERNEL      kernel_avx2
#define KERNEL_NAME "avx2"
#include "analyze/kernel_body.h"
