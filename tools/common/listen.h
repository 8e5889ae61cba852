/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that readers connect to. A program of one thread. */
#pragma once

#include "core/err.h"

#define LISTEN_BACKLOG 16 /* connections that may wait to be accepted, where a few readers come */

/**
 * listen_unix() - a Unix socket (0600)
 * A socket that nobody listens on any more is replaced; anything else at @path is left alone.
 * @backlog: connections that may wait to be accepted
 * @owned: gets a copy of @path, to be removed at the end and freed
 * Return: the descriptor, which does not block; -errno with a sentence in @err.
 */
int listen_unix(struct err *err, const char *path, int backlog, char **owned);

/**
 * listen_tcp() - HOST:PORT, a numeric address or a name; [HOST]:PORT for IPv6; port 0: any that is free
 * Says on stderr where it listens. Return: as listen_unix().
 */
int listen_tcp(struct err *err, const char *where);
