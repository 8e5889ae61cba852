/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that compute on rows while the calling thread reads on. Each has a queue of a few stretches and takes them in their order, so
 * that what one queue gets is computed as by one thread. Called by one thread; the work runs on the others.
 */
#pragma once

#include <dmi/read.h>

#include <stddef.h>

struct workers;

/* @worker: the number of the thread. Return: 0 to go on, else what ends all. */
typedef int workers_fn(void *arg, size_t worker, const struct dmi_read_stretch *stretch);

/* Return: NULL: no thread could be started. Fewer than @n may be. */
struct workers *workers_start(size_t n, workers_fn *work, void *arg);
/* How many there are. */
size_t workers_count(const struct workers *workers);

/**
 * workers_put() - hand a copy of a stretch to a thread; waits until its queue has room
 * Return: 0; -ENOMEM; what a thread's work returned before, once that is seen.
 */
int workers_put(struct workers *workers, size_t worker, const struct dmi_read_stretch *stretch);

/* Waits until all is done, and frees the workers. Return: 0, or what the work returned first. */
int workers_end(struct workers *workers);
