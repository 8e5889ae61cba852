/* SPDX-License-Identifier: Apache-2.0 */
/* Files of vectors that Python reads (python/dmi/vectors): what it writes of them is a safetensors file. One thread. */
#pragma once

#include "core/err.h"

/**
 * foreign_convert() - a file of vectors as safetensors, in memory that no folder has
 * A process of its own reads it, without LD_PRELOAD, within FOREIGN_WALL_S; a signal that ends this program ends it first.
 * @command: whose Python reads it, as python_of() finds it; NULL: python3 of PATH. It needs its standard library, and torch for .pt
 * @layer_is: whose layers they are, where the file does not say; NULL: not known
 * Return: a descriptor to be closed; -EINVAL, and @err says what is wrong with the file, or with Python; -ENOMEM.
 */
int foreign_convert(struct err *err, char *const *command, const char *path, const char *layer_is);

#define FOREIGN_WALL_S 150
