/* SPDX-License-Identifier: Apache-2.0 */
#define SERVE_BF16
#define SERVE_NAME(x) draft_##x##_bf16
#include "kernels.cuh"
