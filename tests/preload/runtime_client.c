/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime_client.c - starts a CUDA runtime, and says what it answers
 *
 * runtime_client LIBRARY: the shared one in that file. Built with -DSTATIC and libcudart_static.a it holds its own.
 */
#include <dlfcn.h>
#include <stdio.h>

static struct runtime {
    int (*count_devices)(int *count);
    int (*free)(void *memory);
    int (*last_error)(void);
} runtime;

#ifdef STATIC
int cudaGetDeviceCount(int *count);
int cudaFree(void *memory);
int cudaGetLastError(void);

static void load(const char *path)
{
    (void)path;
    runtime = (struct runtime){ cudaGetDeviceCount, cudaFree, cudaGetLastError };
}
#else
static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "runtime_client: %s\n", dlerror());
        return;
    }
    runtime.count_devices = (int (*)(int *))dlsym(library, "cudaGetDeviceCount");
    runtime.free = (int (*)(void *))dlsym(library, "cudaFree");
    runtime.last_error = (int (*)(void))dlsym(library, "cudaGetLastError");
}
#endif

int main(int argc, char **argv)
{
    int count = -7;
    load(argc > 1 ? argv[1] : "");
    if (!runtime.count_devices || !runtime.free || !runtime.last_error)
        return 2;
    int counted = runtime.count_devices(&count);
    printf("%d %d %d\n", counted, runtime.free(NULL), runtime.last_error());
    return 0;
}
