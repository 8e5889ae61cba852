/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a run: the folder OUT/<host>-<pid>-<start>/ with manifest.json, counters and segments.
 *
 * One run per process. run_open() and run_close() are for one thread; what appends and run_step()
 * may be called from several (they serialise where they must); run_problem() from any. No function
 * is for a launch path: all may block on the disk, but for those that say otherwise. Source: docs/format.md.
 */
#pragma once

#include "core/err.h"
#include "storage/codec/rung.h"
#include "storage/record.h"
#include "storage/writer/run_options.h"

#include <dmi/counters.h>
#include <dmi/dmi.h>
#include <dmi/edit_account.h>
#include <dmi/live.h>

#include <stddef.h>
#include <stdint.h>

struct run;
struct chunk;
struct text;

/**
 * run_open() - create a run's folder (0700, files 0600) with manifest, spec copy, counters and the
 * first segment
 * @out: to be given to run_close()
 * Return: 0 or -errno with a sentence in @err; after a failure nothing is left.
 */
int run_open(struct err *err, const struct run_options *options, struct run **out);

/**
 * run_encode() - encode records into one chunk, the long part of appending them; nothing is written
 * @records: in any order, at least one
 * @rung: of the codecs' ladder
 * @out: to be given to run_append_chunk() of the same run
 * Thread: any; several encode at a time. Return: 0 or -errno.
 */
int run_encode(struct run *run, const struct run_record *records, size_t n_records,
               enum codec_rung rung, struct chunk **out);

/**
 * run_append_chunk() - append what run_encode() made; chunks are in the file in the order of these calls
 * @chunk: of any type; gone in any case
 * Either the whole chunk is committed (readable after a crash of the process) or nothing is; on
 * failure the file is cut back, so that a later call may succeed (a disk that was full).
 * It touches no counters. Return: 0 or -errno.
 */
int run_append_chunk(struct run *run, struct chunk *chunk);

/* As run_append_chunk(), of metadata alone. @meta: the text is emptied in any case; an empty one is no chunk. */
int run_append_meta(struct run *run, uint16_t type, struct text *meta);

/* Encodes and appends, on the first rung; no record is no chunk. */
int run_append(struct run *run, const struct run_record *records, size_t n_records);

/**
 * run_step() - note a dmi_step as step number @sequence; committed with, and before, the next
 * chunk that is appended
 * Waits for no disk. Return: 0, -ENOMEM, -EINVAL (<dmi/dmi.h> does not allow it); what is refused is counted, and the
 * first of it named in log and manifest.
 */
int run_step(struct run *run, uint64_t sequence, const struct dmi_step *step);

/* A step that the caller refused: counted and named likewise. */
void run_refuse_step(struct run *run, const char *why);

/* A span of a step whose request id cannot be: its rows belong to no request. Counted and named likewise. */
void run_refuse_id(struct run *run, uint64_t step, const char *why);

/*
 * @n steps more overlap another thread's, and nothing says whose a launch is: steps @number and @other were the first. The manifest counts them,
 * and the log names the first.
 */
void run_steps_overlap(struct run *run, uint64_t n, uint64_t number, uint64_t other);

/* A tap that nobody can say the site of: the manifest has how many there were, and why the first was refused. */
void run_refuse_tap(struct run *run, const char *why);

/**
 * run_accept(), run_request_end() - what dmi_accept() and dmi_request_end() say; committed as run_step(), after the
 * steps that they are about
 * Wait for no disk. Return: as those functions; what is refused is counted and named in the manifest.
 */
int run_accept(struct run *run, const char *request_id, uint64_t step, uint32_t n_accepted);
int run_request_end(struct run *run, const char *request_id, uint32_t reason);

/* From the step @sequence on rows of the request are not captured: shed. As run_request_end(). */
int run_request_shed(struct run *run, const char *request_id, uint64_t sequence);

/* Writes steps and outcomes that wait, if any do. Return: 0 or -errno. */
int run_commit(struct run *run);

/**
 * run_change() - note it in the run, in a chunk that is committed at once
 * May block on the disk. Return: 0, also where the disk refuses: then it is written later; -ENOSPC: too many wait for
 * that; -ENOMEM.
 */
int run_change(struct run *run, const struct run_change *change);

/* The same, in a chunk that is committed with what comes next, a second later at most. */
int run_change_later(struct run *run, const struct run_change *change);

/**
 * run_problem() - a sentence for the manifest: a site that matched nothing, an unsupported graph
 * The manifest is rewritten at run_flush() and run_close().
 */
void run_problem(struct run *run, const char *site, const char *reason, const char *sentence);

/* What dmi_describe() says: it is in the manifest with the next commit. Waits for no disk. Return: as that function. */
int run_describe(struct run *run, const char *key, const char *value);

/* A copy of what was said under the key, NULL: nothing, or no memory. free() it. */
char *run_described(struct run *run, const char *key);

/* Writes pending step metadata and the manifest as it stands. Return: 0 or -errno. */
int run_flush(struct run *run);

/* The shared counters: live until run_close(). */
struct dmi_counters *run_counters(struct run *run);

/* What is of use only while it runs: live until run_close(). NULL: there is none. */
struct dmi_live *run_live(struct run *run);

/* The mapped file of edits' accounts; any thread adds to it. NULL: there is none. */
struct dmi_edit_accounts *run_edits(struct run *run);

/* There is no such file from here on, and the manifest says why. Thread: one, before anybody uses the accounts. */
void run_drop_edits(struct run *run, const char *why);

/* A file in the run's folder (0600), in one piece. Thread: any. Return: 0 or -errno. */
int run_put_file(struct run *run, const char *name, const void *data, size_t n);

/* The run's folder. */
const char *run_path(const struct run *run);

/**
 * run_close() - flush, write the footer, mark the counters closed, free
 * Return: 0 or the first -errno met; @run is gone in any case.
 */
int run_close(struct run *run);
