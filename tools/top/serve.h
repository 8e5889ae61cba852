/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page over HTTP/1.0 on a Unix socket, for processes of the same user. Requests are bounded, in bytes and in time, so
 * that a client that says nothing holds up no other. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "storage/text.h"

#include <stdint.h>

#define SERVE_MAX_CLIENTS 256 /* at a time; further ones wait to be accepted */

struct serve;

/* Listens at @path (0600). Return: NULL with a sentence in @err. */
struct serve *serve_new(struct err *err, const char *path);

/* Answers who asks, with @page, until @end_ns of CLOCK_MONOTONIC, or a signal asks to stop. */
void serve_until(struct serve *serve, const struct text *page, uint64_t end_ns);

/* Closes all and removes the socket. Accepts NULL. */
void serve_free(struct serve *serve);
