/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over files, and over all files of folders, where no fuzzer drives it: FILE... The
 * suite fuzz-regress does so with each target's corpus. tests/fuzz/run builds the same targets with
 * libFuzzer, which brings a main() of its own.
 */
#include "core/cleanup.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

/* Return: inputs run, or -1 after printing why. */
static long run_file(const char *path, off_t size)
{
    _cleanup_(fclosep) FILE *f = fopen(path, "rb");
    /* exactly as long as the input, so that AddressSanitizer sees a read past its end */
    _cleanup_(freep) uint8_t *data = malloc(size ? (size_t)size : 1);
    if (!f || !data || fread(data, 1, (size_t)size, f) != (size_t)size) {
        perror(path);
        return -1;
    }
    if (getenv("FUZZ_VERBOSE"))
        fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    return 1;
}

static long run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(st.st_mode))
        return run_file(path, st.st_size);
    _cleanup_(closedirp) DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return -1;
    }
    long n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        _cleanup_(freep) char *inner = NULL;
        if (entry->d_name[0] == '.')
            continue;
        if (asprintf(&inner, "%s/%s", path, entry->d_name) < 0)
            return -1;
        long ran = run_path(inner);
        if (ran < 0)
            return -1;
        n += ran;
    }
    return n;
}

int main(int argc, char **argv)
{
    long n = 0;
    for (int i = 1; i < argc; i++) {
        long ran = run_path(argv[i]);
        if (ran < 0)
            return 1;
        n += ran;
    }
    printf("%ld inputs\n", n);
    return n ? 0 : 1; /* a corpus that got lost is a failure */
}
