/* SPDX-License-Identifier: Apache-2.0 */
/* C text to a loaded shared object, through the system's compiler and a cache on disk. Any thread. */
#ifndef STANDIN_PTX_BUILD_H
#define STANDIN_PTX_BUILD_H

#include <stdbool.h>
#include <stddef.h>

/* The PTX that a C text was translated from. */
struct build_from {
    const char *ptx;
    size_t n;
    bool pausable;
};

/* The object that build_shared() loaded for it, if the translator is the same; no C is needed for it. Return: NULL: none. */
void *build_known(const struct build_from *from);

/**
 * build_shared() - compile rt.h followed by @text, unless the cache has it, and dlopen it
 *
 * The cache is a folder: $DMI_STANDIN_CACHE, else $XDG_CACHE_HOME/dmi-standin, else
 * ~/.cache/dmi-standin; a file's name is the hash of text, compiler, flags and CPU. A link with the hash
 * of @from and of the translator's library names it, for build_known().
 * Return: the handle, or NULL with a message in @log.
 */
void *build_shared(const char *text, size_t n_text, const struct build_from *from, char *log,
                   size_t n_log);

#endif
