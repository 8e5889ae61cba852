/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tap_here - the taps of docs/taps.md in C, in a program that runs with and without the library: tap_here TOKENS HIDDEN
 *
 * Taps a tensor of TOKENS rows of HIDDEN bf16 elements, 1, 2, 3, ..., in layers 0 and 1, and prints the answers to stderr.
 */
#include <cuda.h>

#include <dmi/dtype.h>
#include <dmi/tap.h>

#include <stdio.h>
#include <stdlib.h>

static int tap_resid_pre(const void *data, uint64_t tokens, uint64_t hidden, int layer,
                         void *stream)
{
    struct dmi_tap tap = {
        .size = sizeof tap,
        .version = DMI_TAP_VERSION,
        .name = "resid_pre",
        .layer = layer,
        .data = data,
        .stream = stream,
        .dtype = DMI_DTYPE_BF16,
        .n_dims = 2,
        .row_dims = 1 << 0, /* dimension 0 is the tokens */
        .count = { tokens, hidden },
        .stride = { (int64_t)hidden * 2, 2 },
    };
    return dmi_tap_here(&tap);
}

static void need(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: error %d\n", what, (int)r);
    exit(2);
}

int main(int argc, char **argv)
{
    uint64_t tokens = argc > 2 ? strtoull(argv[1], NULL, 10) : 3;
    uint64_t hidden = argc > 2 ? strtoull(argv[2], NULL, 10) : 4;
    size_t n = tokens * hidden;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr data;
    uint16_t *values = calloc(n + 1, sizeof *values);
    if (!values)
        return 2;
    for (size_t i = 0; i < n; i++)
        values[i] = (uint16_t)(i + 1);
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, 0), "cuDeviceGet");
    need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    need(cuMemAlloc(&data, n * sizeof *values + 16), "cuMemAlloc");
    need(cuMemcpyHtoDAsync(data, values, n * sizeof *values, stream), "cuMemcpyHtoDAsync");
    for (int layer = 0; layer < 2; layer++)
        fprintf(stderr, "%d\n",
                tap_resid_pre((const void *)(uintptr_t)data, tokens, hidden, layer, stream));
    need(cuStreamSynchronize(stream), "cuStreamSynchronize");
    puts(dmi_tap_is_on() ? "on" : "off");
    free(values);
    return 0;
}
