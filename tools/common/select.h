/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a run a command reads. A program of one thread. */
#pragma once

#include "read/selection.h"

/**
 * select_records() - read the records that a selection needs, by the run's index
 * @select: NULL: all
 * @by_window: none: reader_window() and reader_next_steps() read some at a time
 * Reads all where the engine named no requests, since positions then follow from all rows of a forward; and where
 * nothing matches, so that it can be said what is nearest.
 * Return: 0 or -errno with a sentence in @err.
 */
int select_records(struct err *err, struct reader *reader, const struct selection *select,
                   bool by_window);

/**
 * select_check() - whether the run has what a selection names, by the records that are selected
 * @select: gets the number of layers that "last" counts from
 * Return: 0; -ENOENT and -errno with a sentence in @err.
 */
int select_check(struct err *err, const struct reader *reader, struct selection *select);

/*
 * Says of which requests "prompt" and "response" mean nothing, where a selection has such a word: it is not known where their generation begins, so
 * rows of theirs are not among what is selected. Return: whether there are any.
 */
bool select_tell_unjudged(const struct requests *requests, const struct selection *select);
