/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime_client.c - starts a CUDA runtime, and says what it answers
 *
 * runtime_client LIBRARY: the shared one in that file. Built with -DSTATIC and libcudart_static.a it holds its own.
 */
#include <dlfcn.h>
#include <stdio.h>

#ifdef STATIC
int cudaGetDeviceCount(int *count);
int cudaFree(void *memory);
int cudaGetLastError(void);
#else
static int (*cudaGetDeviceCount)(int *count);
static int (*cudaFree)(void *memory);
static int (*cudaGetLastError)(void);

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "runtime_client: %s\n", dlerror());
        return;
    }
    cudaGetDeviceCount = (int (*)(int *))dlsym(library, "cudaGetDeviceCount");
    cudaFree = (int (*)(void *))dlsym(library, "cudaFree");
    cudaGetLastError = (int (*)(void))dlsym(library, "cudaGetLastError");
}
#endif

int main(int argc, char **argv)
{
    int count = -7;
#ifdef STATIC
    (void)argc;
    (void)argv;
#else
    load(argc > 1 ? argv[1] : "");
    if (!cudaGetDeviceCount || !cudaFree || !cudaGetLastError)
        return 2;
#endif
    int counted = cudaGetDeviceCount(&count);
    printf("%d %d %d\n", counted, cudaFree(NULL), cudaGetLastError());
    return 0;
}
