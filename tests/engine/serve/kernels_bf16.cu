/* SPDX-License-Identifier: Apache-2.0 */
#define SERVE_BF16
#define SERVE_NAME(x) x##_bf16
#include "kernels.cuh"
