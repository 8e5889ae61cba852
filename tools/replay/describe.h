/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items in words: the JSON objects that the frames and the lines of a stream carry. Each is a new reference, or NULL
 * where memory ran out. A program of one thread. Source: docs/stream.md.
 */
#pragma once

#include "tools/replay/source.h"

/* What every item has: its type, its run, and which rank that is. */
json_t *describe_begin(const struct replay_source *source, enum item_kind kind);

/* "closed", "running" or "killed" */
const char *describe_state(const struct replay_source *source);

/* The edits that were in force at any time so far, [{name, site}]; both null of those that the run does not name. */
json_t *describe_edits(const struct replay_source *source);

/* Of the run; @resumed: part of it was replayed before. */
json_t *describe_run(const struct replay_source *source, bool resumed);

/* Of the step of the record that comes next. */
json_t *describe_step(const struct replay_source *source, const struct reader_step *step);

/* Of an item that source_fill() has filled. */
json_t *describe_record(const struct replay_source *source, const struct item *item);

/* Of the event that comes next. */
json_t *describe_event(const struct replay_source *source);

/* What cannot be read: a finding of the reader; the item of a record that cannot be decoded. */
json_t *describe_finding(const struct replay_source *source, const struct reader_finding *finding);
json_t *describe_undecoded(const struct replay_source *source, const struct item *item);

/* The records of a site that were dropped; NULL also where none were. */
json_t *describe_drops(const struct replay_source *source, uint32_t site);

/* @complete: all of the run was replayed. */
json_t *describe_end(const struct replay_source *source, bool complete);
