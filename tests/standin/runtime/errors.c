/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.c - names of errors, and the same in words. A driver's error has the same number in the runtime.
 */
#include "runtime.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>

#define N_CHARS 64

static struct {
    cudaError_t error;
    const char *name;
    char words[N_CHARS];
} errors[] = {
#define ERROR(name, value) { name, #name, "" },
#include "runtime_errors.inc"
#undef ERROR
};

#define N_ERRORS (sizeof(errors) / sizeof(errors[0]))

/* "cudaErrorInvalidValue" reads "invalid value". */
static void say_in_words(char *words, const char *name)
{
    size_t n = 0;

    name += strncmp(name, "cudaError", 9) ? strlen("cuda") : strlen("cudaError");
    for (; *name && n < N_CHARS - 2; name++) {
        if (isupper((unsigned char)*name) && n && !isupper((unsigned char)name[-1]))
            words[n++] = ' ';
        words[n++] = (char)tolower((unsigned char)*name);
    }
}

static void say_all(void)
{
    for (size_t i = 0; i < N_ERRORS; i++)
        say_in_words(errors[i].words, errors[i].name);
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < N_ERRORS; i++) {
        if (errors[i].error == error)
            return errors[i].name;
    }
    return "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, say_all);
    if (error == cudaSuccess)
        return "no error";
    if (error == cudaErrorMemoryAllocation)
        return "out of memory"; /* what programs look for */
    for (size_t i = 0; i < N_ERRORS; i++) {
        if (errors[i].error == error)
            return errors[i].words;
    }
    return "unrecognized error code";
}
