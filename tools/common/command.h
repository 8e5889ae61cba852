/* SPDX-License-Identifier: Apache-2.0 */
/* What programs share that become another command with libdmi_preload.so in front of it. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Bytes, K, M or G may follow the number. Return: false if @text is no size; else @out is its bytes in decimal. */
bool command_size(const char *text, char *out, size_t n_out);

/* Path of the library beside this program: in a build folder, or where it was installed. Return: NULL: said why. */
char *command_library(void);

/* The folder that holds the Python package dmi: in the source tree, or where it was installed. Return: NULL: said why. */
char *command_python(void);

/* Sets a variable of the environment; a NULL value leaves it. Return: false: said why. */
bool command_set(const char *name, const char *value);

/* Puts @library into LD_PRELOAD. Return: false: said why. */
bool command_preload(const char *library);

/* Becomes the command. Return: the status to exit with where that failed, which is said. */
int command_become(char **command);
