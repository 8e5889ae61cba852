/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version.h - which driver this library is, and what it can read. Any thread.
 */
#ifndef STANDIN_VERSION_H
#define STANDIN_VERSION_H

#include <stddef.h>

/** driver_version - 1000 * major + 10 * minor, as cuDriverGetVersion() answers; version.c, compiled for each library */
extern const int driver_version;

/**
 * ptx_newest() - the newest PTX that a driver of @version reads, 10 * major + minor
 * Source: PTX ISA, "Release Notes"
 */
int ptx_newest(int version);

/** ptx_version() - the number after `.version`, 10 * major + minor; 0: @text does not begin with one */
int ptx_version(const char *text, size_t n_text);

#endif
