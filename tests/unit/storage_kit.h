/* SPDX-License-Identifier: Apache-2.0 */
/* Small runs to test storage with. What they hold follows from a seed, so that readers can be
 * checked value by value. */
#ifndef TESTS_UNIT_STORAGE_KIT_H
#define TESTS_UNIT_STORAGE_KIT_H

#include "storage/reader/reader.h"
#include "storage/writer/run.h"

#include <stdbool.h>

/* A folder of this test's own under $TMPDIR, removed by kit_remove(). */
char *kit_folder(void);
void kit_remove(const char *folder);

/* One site for every dtype, then "logits" (a row a request, scale 1e12). */
struct run *kit_open(const char *out, uint64_t segment_bytes);
/* The same, with the times, sizes and durability of @more. */
struct run *kit_open_with(const char *out, const struct run_options *more);

/* xorshift64*: never 0 */
uint64_t kit_random(uint64_t *state);

/* Fills @data as an activation would look: smooth exponents, random mantissas. */
void kit_fill(void *data, uint32_t dtype, size_t n_elements, uint64_t seed);

/**
 * kit_forward() - append what forward @number of a run holds, counted in its counters
 * A step with two requests ("../../x\n" and "b") and two records: site 0 (f32, 4 x @width), and
 * logits (2 x 8).
 * Return: what run_append() returned.
 */
int kit_forward(struct run *run, uint64_t number, uint32_t width);
/* Its two halves. */
int kit_step(struct run *run, uint64_t number);
int kit_records(struct run *run, uint64_t number, uint32_t width);

#define KIT_SPECIAL 1000 /* forward of what kit_special() writes; kit_holds() passes over it */

/**
 * kit_special() - append what kit_forward() does not have: two row dimensions, a list of kept rows, and a
 * step of number @step whose span says how long the prompt is
 * Return: what run_append() returned.
 */
int kit_special(struct run *run, uint64_t step);

/* Fails the test where record @index is not that. */
void kit_expect_special(struct reader *reader, size_t index);

/* Opens and, with @verify, verifies; fails the test where it cannot be opened. */
struct reader *kit_read(const char *path, bool verify);

/* How many findings are damage, and the first of them. */
size_t kit_damage(const struct reader *reader, const struct reader_finding **first);

/* Whether all of the reader's records hold what kit_forward() wrote. */
bool kit_holds(struct reader *reader, uint32_t width);

/* The one folder inside @out. */
char *kit_run_folder(const char *out);

/* Whole files. */
uint8_t *kit_load(const char *folder, const char *name, size_t *n);
void kit_store(const char *folder, const char *name, const void *data, size_t n);

#endif
