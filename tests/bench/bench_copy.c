/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel alone: bench_copy ROUNDS FILE.ptx [FILE.ptx ...]
 *
 * One record of 4 MiB, copied by dmi_copy_eager of each file in turn, ROUNDS times: packed, as rows of a wider buffer,
 * and with three dimensions. Prints the median of each, and the rate in payload bytes. For one thread.
 */
#include "tests/bench/bench.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4 << 20, SOURCE_BYTES = 64 << 20, THREADS = 256, BLOCKS = 256, MAX_FILES = 4 };

static const struct {
    const char *name;
    struct dmi_gather gather;
} shapes[] = {
    { "packed", { .count = { 1, 1, 1, 1 }, .run_bytes = BYTES } },
    { "rows of 4608 in 13824 bytes",
      { .count = { BYTES / 4608, 1, 1, 1 }, .stride = { 13824, 0, 0, 0 }, .run_bytes = 4608 } },
    { "rows of 256 in 768 bytes",
      { .count = { BYTES / 256, 1, 1, 1 }, .stride = { 768, 0, 0, 0 }, .run_bytes = 256 } },
    { "[64][32][8] of 256 bytes",
      { .count = { 64, 1, 32, 8 },
        .stride = { 256, 0, 64 * 256, 32 * 64 * 256 },
        .run_bytes = 256 } },
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (!file || !text || !fread(text, 1, (1 << 20) - 1, file))
        bench_die(path, 0);
    fclose(file);
    return text;
}

static CUfunction load(const char *path)
{
    CUmodule module;
    CUfunction function;
    char *text = read_text(path);
    CALL(cuModuleLoadData, &module, text);
    CALL(cuModuleGetFunction, &function, module, "dmi_copy_eager");
    free(text);
    return function;
}

/* Return: ns from the launch until the copy is done. */
static double copy_once(CUfunction function, const struct dmi_copy *copy)
{
    struct dmi_copy parameter = *copy;
    void *params[] = { &parameter };
    uint64_t start = bench_now_ns();
    CALL(cuLaunchKernel, function, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL);
    CALL(cuCtxSynchronize, );
    return (double)(bench_now_ns() - start);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[1]) : 0, n_files = argc - 2;
    if (rounds < 1 || n_files > MAX_FILES)
        bench_die("usage: bench_copy ROUNDS FILE.ptx ...", 0);
    struct bench_kernels kernels;
    bench_start(&kernels);
    CUfunction functions[MAX_FILES];
    for (int f = 0; f < n_files; f++)
        functions[f] = load(argv[2 + f]);
    struct dmi_copy copy = { .record = { .ready = DMI_SEQ_FIRST } };
    CUdeviceptr source, payload, desc, retired;
    CALL(cuMemAlloc_v2, &source, SOURCE_BYTES);
    CALL(cuMemAlloc_v2, &payload, BYTES);
    CALL(cuMemAlloc_v2, &desc, sizeof(struct dmi_desc));
    CALL(cuMemAlloc_v2, &retired, sizeof(uint32_t));
    CALL(cuMemsetD8_v2, source, 1, SOURCE_BYTES);
    CALL(cuMemsetD8_v2, retired, 0, sizeof(uint32_t));
    copy.payload = payload;
    copy.desc = desc;
    copy.retired = retired;
    double *times = calloc((size_t)rounds * MAX_FILES, sizeof *times);
    if (!times)
        bench_die("no memory", 0);
    for (int s = 0; s < N_SHAPES; s++) {
        copy.gather = shapes[s].gather;
        copy.gather.src = source;
        copy.gather.access = 16;
        copy.record.n_rows = copy.gather.count[0];
        for (int r = -2; r < rounds; r++) /* two to warm up */
            for (int f = 0; f < n_files; f++) {
                double ns = copy_once(functions[f], &copy);
                if (r >= 0)
                    times[f * rounds + r] = ns;
            }
        for (int f = 0; f < n_files; f++) {
            double ns = bench_median(times + f * rounds, rounds);
            printf("%-28s file %d: %8.1f us, %6.2f GB/s\n", shapes[s].name, f + 1, ns / 1e3,
                   BYTES / ns);
        }
    }
    free(times);
    return 0;
}
