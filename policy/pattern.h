/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX extended regexes of HookSpecs, with bounds that keep compilation and matching cheap: glibc
 * writes repetitions out, so that 20 characters can ask for gigabytes, and back references make
 * matching exponential. Compiling: one thread; matching: any.
 */
#pragma once

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>

#define PATTERN_MAX_TEXT  1024
#define PATTERN_MAX_SIZE  4096 /* characters once all repetitions are written out */
#define PATTERN_MAX_DEPTH 16
#define PATTERN_MAX_TOTAL 131072 /* as PATTERN_MAX_SIZE, for all patterns of a spec */

/* One compiled pattern; immutable, so any thread may match with it. */
struct pattern {
    char *text;
    bool literal; /* ^NAME$: compared, not searched, and @re is not in use */
    regex_t re;
};

struct pattern_error {
    size_t offset; /* in the pattern */
    char msg[192];
};

enum { PATTERN_E_INVALID = 1 };

/**
 * pattern_compile() - compile @text for pattern_matches()
 * @room: characters that may still be written out; what this pattern takes is subtracted
 * @out: to be freed with pattern_deinit() after success
 * Return: 0, PATTERN_E_INVALID (see @error), -ENOMEM.
 */
int pattern_compile(const char *text, size_t *room, struct pattern *out,
                    struct pattern_error *error);

/* Frees what pattern_compile() has filled in. */
void pattern_deinit(struct pattern *pattern);

/* true if the pattern matches somewhere in @name */
bool pattern_matches(const struct pattern *pattern, const char *name);
