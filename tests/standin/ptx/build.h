/* SPDX-License-Identifier: Apache-2.0 */
/* C text to a loaded shared object, through the system's compiler and a cache on disk. Any thread. */
#ifndef STANDIN_PTX_BUILD_H
#define STANDIN_PTX_BUILD_H

#include <stddef.h>

/**
 * build_shared() - compile rt.h followed by @text, unless the cache has it, and dlopen it
 *
 * The cache is a folder: $DMI_STANDIN_CACHE, else $XDG_CACHE_HOME/dmi-standin, else
 * ~/.cache/dmi-standin; a file's name is the hash of text, compiler, flags and CPU.
 * Return: the handle, or NULL with a message in @log.
 */
void *build_shared(const char *text, size_t n_text, char *log, size_t n_log);

#endif
