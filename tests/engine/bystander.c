/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bystander.c - a program without CUDA, which looks at what a preloaded library has changed in it
 *
 * bystander          says "threads N cuInit FOUND" where FOUND is yes or no for RTLD_DEFAULT
 * bystander LIBRARY  the same after dlopen(LIBRARY, RTLD_GLOBAL)
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;

    if (!tasks)
        return -1;
    for (const struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks))
        n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
        printf("%s\n", dlerror());
        return 2;
    }
    printf("threads %d cuInit %s\n", count_threads(), dlsym(RTLD_DEFAULT, "cuInit") ? "yes" : "no");
    return 0;
}
